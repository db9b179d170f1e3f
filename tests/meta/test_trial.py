"""Trials: fresh agents trained by a fixed rule, as in training."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from discorl import tree
from discorl.agents.agent import Agent, adam_clip, mlp_agent_net
from discorl.envs.registry import make_tensor_env
from discorl.meta import trial as module
from discorl.meta.meta_value import MetaValue, ValueNet
from discorl.meta.objective import ObjectiveWeights
from discorl.meta.population import Group
from discorl.meta.trial import Trial, act_untrained, final_score, run_trial
from discorl.meta.window import Window, WindowSettings
from discorl.nets.torsos import MLPTorso
from discorl.rules import ActorCritic
from discorl.rules.values import ReturnSettings
from tests.builders import rng
from tests.meta.population import tiny_config, tiny_groups


def tiny_trial(**changes: Any) -> tuple[Trial, Any]:
    """Two agents with three environments each."""
    groups, params = tiny_groups(tiny_config(replay_capacity=9))
    settings: dict[str, Any] = {"batch_size": 5} | changes
    return Trial(groups[0], **settings), params


def test_one_row_for_each_update_and_the_same_again_for_the_same_seed() -> None:
    trial, params = tiny_trial(num_fresh=2, updates_per_step=2)
    curve = run_trial(trial, params, 4, rng(1))
    assert curve.shape == (4, 2)
    assert torch.equal(curve.nan_to_num(9), run_trial(trial, params, 4, rng(1)).nan_to_num(9))
    assert not torch.equal(curve.nan_to_num(9), run_trial(trial, params, 4, rng(2)).nan_to_num(9))


@pytest.mark.parametrize("updates, rollouts", [(1, 2), (3, 2), (4, 3), (7, 4)])
def test_agents_act_once_in_a_few_updates(
    updates: int, rollouts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice at first: a batch of five needs two rollouts of three trajectories."""
    acted, honest = [], module.act_in_group

    def act(*args: Any) -> Any:
        acted.append(args[3])
        return honest(*args)

    monkeypatch.setattr(module, "act_in_group", act)
    trial, params = tiny_trial(updates_per_step=3)
    run_trial(trial, params, updates, rng())
    assert acted == [5] * rollouts
    assert trial.num_rollouts(updates) == rollouts


def small_catch(**changes: Any) -> Trial:
    env = make_tensor_env("catch:4x3", 3 * 16)
    returns = ReturnSettings(0.99)
    rule = ActorCritic(num_bins=None, returns=returns, entropy_cost=0.02, mask_episode_starts=False)
    net = mlp_agent_net(env.spec, rule, (32,), 8, (8,))
    agent = Agent(net, rule, adam_clip(1e-2))
    meta_value = MetaValue(ValueNet(MLPTorso(12, (4,)), 4))
    window = Window(agent, meta_value, ObjectiveWeights(), each=tree.vmap)
    settings = WindowSettings(num_envs=16, rollout_length=12, replay_capacity=64)
    return Trial(Group("catch", window, env, 3, settings), batch_size=16, **changes)


@pytest.mark.parametrize("changes", [{"num_fresh": 16}, {"num_fresh": 8, "updates_per_step": 2}])
def test_an_actor_critic_learns_small_catch_in_a_trial(changes: dict[str, int]) -> None:
    trial = small_catch(**changes)
    curve = run_trial(trial, {}, 80, rng())
    assert float(curve[:5].nanmean()) < 0.2
    assert final_score(curve) > 0.7


def test_untrained_agents_act_as_long_and_stay_untrained() -> None:
    trial = small_catch(num_fresh=16)
    episodes = act_untrained(trial, 80, rng())
    # 80 rollouts of 12 steps in 16 copies; an episode of four rows takes three steps.
    assert episodes.count.tolist() == pytest.approx([80 * 12 * 16 / 3] * 3, rel=0.01)
    assert (episodes.returns / episodes.count).max() < 0.2
    assert torch.equal(episodes.squares, episodes.count)  # each return is 1 or -1


def test_the_score_is_the_mean_over_the_last_fifth() -> None:
    curve = torch.arange(20.0).reshape(10, 2)
    assert final_score(curve) == curve[-2:].mean()
    assert final_score(replace_last_with_nan(curve)) == 18.0


def replace_last_with_nan(curve: torch.Tensor) -> torch.Tensor:
    """All but one of the values that count."""
    curve = curve.clone()
    curve[-2:] = torch.nan
    curve[-1, 0] = 18.0
    return curve
