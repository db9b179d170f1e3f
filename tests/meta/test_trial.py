"""Trials: fresh agents trained by a fixed rule."""

from __future__ import annotations

import torch

from discorl import tree
from discorl.agents.agent import Agent, adam_clip, mlp_agent_net
from discorl.envs.registry import make_tensor_env
from discorl.meta.meta_value import MetaValue, ValueNet
from discorl.meta.objective import ObjectiveWeights
from discorl.meta.population import Group
from discorl.meta.trial import run_trial
from discorl.meta.window import Window, WindowSettings
from discorl.nets.torsos import MLPTorso
from discorl.rules import ActorCritic
from discorl.rules.values import ReturnSettings
from tests.builders import rng
from tests.meta.population import tiny_config, tiny_groups


def test_one_row_for_each_update_and_the_same_again_for_the_same_seed() -> None:
    groups, params = tiny_groups(tiny_config())
    curve = run_trial(groups[0], params, 4, rng(1))
    assert curve.shape == (4, 2)
    assert torch.equal(curve.nan_to_num(9), run_trial(groups[0], params, 4, rng(1)).nan_to_num(9))
    assert not torch.equal(
        curve.nan_to_num(9), run_trial(groups[0], params, 4, rng(2)).nan_to_num(9)
    )


def test_an_actor_critic_learns_small_catch_in_a_trial() -> None:
    env = make_tensor_env("catch:4x3", 3 * 16)
    returns = ReturnSettings(0.99)
    rule = ActorCritic(num_bins=None, returns=returns, entropy_cost=0.02, mask_episode_starts=False)
    net = mlp_agent_net(env.spec, rule, (32,), 8, (8,))
    agent = Agent(net, rule, adam_clip(1e-2))
    meta_value = MetaValue(ValueNet(MLPTorso(12, (4,)), 4))
    window = Window(agent, meta_value, ObjectiveWeights(), each=tree.vmap)
    group = Group("catch", window, env, 3, WindowSettings(num_envs=16, rollout_length=12))
    curve = run_trial(group, {}, 80, rng())
    assert float(curve[:5].nanmean()) < 0.2
    assert float(curve[-10:].mean()) > 0.8
