"""Trials on held-out tasks train agents as ``discorl train`` does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

from discorl import tree
from discorl.agents.replay import Replay
from discorl.discovery.trials import baseline_settings, make_trial, rule_settings
from discorl.errors import DiscorlError
from discorl.meta import trial as trial_module
from discorl.meta.trial import Trial, run_trial
from discorl.nets.net_config import NetConfig
from discorl.rules import DiscoRule
from discorl.rules.actor_critic import ActorCritic
from discorl.rules.store import load_rule, save_rule
from discorl.runs.distributed import Ranks
from discorl.training import presets
from discorl.training.config import TrainConfig
from discorl.training.train import Training, train
from discorl.types import Params
from tests.builders import random_rule_params, rng, small_disco
from tests.meta.population import tiny_config

CPU = torch.device("cpu")


def trial_of(
    settings: TrainConfig, rule: DiscoRule | None, agents: int, updates: int, env: Any = None
) -> Trial:
    config = tiny_config(eval_agents=agents, eval_updates=updates)
    return make_trial(config, settings, rule, CPU, env)


@pytest.mark.parametrize(
    "task", ["catch:5x4", "umbrella:10", "gym:CartPole-v1", "minatar:breakout", "ale:Pong"]
)
@pytest.mark.parametrize("sizes", ["small", "Disco103"])
def test_settings_are_those_of_training_with_the_rules_file(
    task: str, sizes: str, tmp_path: Path
) -> None:
    rule = replace(small_disco() if sizes == "small" else DiscoRule(), mask_episode_starts=False)
    path = tmp_path / "rule.npz"
    save_rule(path, rule, random_rule_params(rule), {})
    assert replace(rule_settings(task, rule), rule=str(path)) == presets.for_run(task, str(path))
    of_baseline = presets.for_run(task, "actor-critic")
    assert replace(baseline_settings(task), rule="actor-critic") == of_baseline


def test_an_entry_may_name_a_network_of_its_own() -> None:
    rule = small_disco()
    named, plain = (rule_settings(text, rule) for text in ("catch:5x4*3/9x8", "catch:5x4"))
    assert named == replace(plain, net=replace(plain.net, torso=(9, 8)))
    assert baseline_settings("memory/7+lstm4").net.core_lstm == 4


def test_agents_are_those_of_training() -> None:
    rule = replace(small_disco(), mask_episode_starts=False)
    trial = trial_of(rule_settings("catch:5x4", rule), rule, 2, 8)
    agent = trial.group.window.agent
    assert agent.rule == rule
    assert (trial.batch_size, trial.num_fresh, trial.updates_per_step) == (16, 8, 4)
    assert trial.group.settings.num_envs == 16
    assert trial.group.settings.replay_capacity == 32, "two rollouts: nothing else is ever written"
    baseline = trial_of(baseline_settings("gym:CartPole-v1"), None, 2, 8)
    assert isinstance(baseline.group.window.agent.rule, ActorCritic)
    assert (baseline.num_fresh, baseline.updates_per_step) == (16, 1)
    pictures = trial_of(baseline_settings("minatar:breakout"), None, 2, 8)
    assert pictures.group.window.each is tree.one_by_one


def test_a_ready_environment_says_how_many_copies_there_are() -> None:
    settings = baseline_settings("mine")
    made = [lambda: gymnasium.make("CartPole-v1")]
    trial = trial_of(settings, None, 2, 1, SyncVectorEnv(made * 6))
    assert trial.group.settings.num_envs == 3
    with pytest.raises(DiscorlError, match="5 copies, which 2 agents cannot share"):
        trial_of(settings, None, 2, 1, SyncVectorEnv(made * 5))


SETTINGS = TrainConfig(
    task="catch:5x4",
    rule="actor-critic",
    steps=25,
    num_envs=4,
    rollout_length=5,
    batch_size=10,
    replay_capacity=24,
    replay_share=0.6,
    updates_per_step=3,
    net=NetConfig(torso=(6,), action_lstm=4, head_hidden=(4,)),
    device="cpu",
    progress="none",
)


def ages_in_training(settings: TrainConfig) -> tuple[list[Any], int]:
    """How many rollouts ago each row of each batch was made, and the environment steps."""
    program = Training(settings, Ranks(0, 1, CPU))
    program.begin()
    found, honest = [], Replay.draw

    def draw(self: Replay, *args: Any) -> Any:
        slots = honest(self, *args)
        found.append(self.ages(slots).tolist())
        return slots

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Replay, "draw", draw)
        for _ in range(settings.steps):
            program.step(Path())
    return found, program.state.step * settings.num_envs * settings.rollout_length


def ages_in_a_trial(settings: TrainConfig, updates: int) -> tuple[list[Any], int]:
    """The same of a trial with one agent, whose trajectories carry the number of their rollout."""
    found, acted = [], []
    honest_act, honest_sample = trial_module.act_in_group, trial_module.sample_replay

    def act(*args: Any) -> Any:
        rollout, *rest = honest_act(*args)
        acted.append(rollout.rewards[0].numel())
        return replace(rollout, rewards=torch.full_like(rollout.rewards, len(acted))), *rest

    def sample(*args: Any) -> Any:
        batch = honest_sample(*args)
        found.append((len(acted) - batch.rewards[0, 0]).long().tolist())
        return batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial_module, "act_in_group", act)
        patch.setattr(trial_module, "sample_replay", sample)
        run_trial(trial_of(settings, None, 1, updates), {}, updates, rng())
    return found, sum(acted)


def test_batches_are_distributed_as_in_training() -> None:
    trained, steps_trained = ages_in_training(SETTINGS)
    # No update before the third rollout, with which the replay has a batch.
    assert len(trained) == 23 * 3
    tried, steps_tried = ages_in_a_trial(SETTINGS, len(trained))
    assert (len(tried), steps_tried) == (len(trained), steps_trained)
    for old, new in zip(trained, tried, strict=True):
        assert len(old) == len(new) == 10
        assert old[:4] == new[:4] == [0] * 4, "as many fresh trajectories as environments"
    replayed = [torch.tensor([x[4:] for x in ages]).float() for ages in (trained, tried)]
    for first in (slice(0, 9), slice(9, None)):  # as the replay fills up, and when it is full
        means = [float(x[first].mean()) for x in replayed]
        assert means[0] == pytest.approx(means[1], abs=0.4)
    assert {*replayed[0].unique().tolist()} == {*replayed[1].unique().tolist()} == {*range(6)}


def curve_of_training(settings: TrainConfig, seed: int, out: Path) -> list[float]:
    """Mean return of all episodes so far, after each half."""
    half = settings.steps // 2
    result = train(replace(settings, seed=seed, log_every=half, threads=1, out=out))
    return [row["return"] for row in result.metrics]


def test_agents_learn_as_in_training(tmp_path: Path) -> None:
    """Three agents of our own rule on Catch, half of whose balls they catch in the end."""
    steps, updates = 26, 26 * 4
    loaded = load_rule("disco-mini")
    preset = presets.for_run("catch:5x5", "disco-mini")
    preset = replace(preset, steps=steps, device="cpu", progress="none")
    trained = torch.tensor([curve_of_training(preset, s, tmp_path / str(s)) for s in range(3)])
    trial = trial_of(rule_settings("catch:5x5", loaded.rule), loaded.rule, 3, updates)
    params: Params = loaded.params
    tried = run_trial(trial, params, updates, rng())
    first, second = float(tried[: updates // 2].nanmean()), float(tried.nanmean())
    assert first < -0.2 < -0.1 < second
    assert first == pytest.approx(float(trained[:, 0].mean()), abs=0.25)
    assert second == pytest.approx(float(trained[:, 1].mean()), abs=0.25)
