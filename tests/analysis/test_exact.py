"""Exact values against returns that were played."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from discorl.agents.acting import act, begin
from discorl.agents.agent import Agent, adam_clip, mlp_agent_net
from discorl.analysis.exact import exact_values
from discorl.analysis.lives import Age, Life
from discorl.envs.registry import make_tensor_env
from discorl.rules import CMPO
from discorl.training.config import TrainConfig
from tests.builders import disturbed, rng

TASKS = ["mdp:4x2", "chain:4", "deep-sea:4", "catch:4x3", "catch:sampled@3", "grid:sparse"]


def played(task: str, num_steps: int, num_envs: int, warm_up: int = 0) -> tuple[Life, Age]:
    """An agent of random weights that has played for a while."""
    env, rule = make_tensor_env(task, num_envs), CMPO(num_bins=11, max_abs_value=5.0)
    agent = Agent(mlp_agent_net(env.spec, rule, (8,), 4, (4,)), rule, adam_clip(1e-2))
    state = agent.init_state(rng())
    state = replace(state, params=disturbed(state.params, 0.5))
    at = begin(agent.net, env, rng(1))
    if warm_up:
        _, at = act(agent.net, state.params, env, at, warm_up)
    rollout, _ = act(agent.net, state.params, env, at, num_steps)
    age = Age(0, state, rollout, rollout, at.env_state)
    return Life("the rule", task, 0, agent, {}, [age], TrainConfig(task), env.spec, env=env), age


@pytest.mark.parametrize("task", TASKS)
def test_values_are_the_mean_of_what_follows(task: str) -> None:
    """From the middle of episodes, the discounted rewards to their end."""
    life, age = played(task, 120, 2000, warm_up=3)
    value = exact_values(life, age)
    assert value is not None and value.shape == age.played.actions[:-1].shape
    gamma = life.agent.rule.returns.discount
    weight, returned = torch.ones(2000, dtype=torch.double), torch.zeros(2000, dtype=torch.double)
    for reward, discount in zip(age.played.rewards[1:], age.played.discounts[1:]):
        returned += weight * reward
        weight *= gamma * discount
    assert weight.max() == 0, "all episodes have ended"
    error = (returned - value[0]).std() / 2000**0.5
    assert abs(float((returned - value[0]).mean())) < 4 * float(error) + 1e-6
    if value[0].std() > 1e-3:  # each state has its own
        joint = torch.stack([returned, value[0]])
        slope = joint.cov()[0, 1] / joint[1].var()
        assert 0.7 < slope < 1.3


def test_a_grid_whose_objects_come_back() -> None:
    """One step of Bellman's equation, by playing on from the states of one moment."""
    life, age = played("grid:dense", 3, 3000, warm_up=30)
    value = exact_values(life, age)
    assert value is not None
    gamma = life.agent.rule.returns.discount
    rollout = age.played
    ahead = rollout.rewards[1] + gamma * rollout.discounts[1] * value[1]
    gap = ahead - value[0]
    assert abs(float(gap.mean())) < 4 * float(gap.std()) / 3000**0.5
    assert value.std() > 0.01


def test_tasks_without_a_table() -> None:
    for task in ("cartpole", "chain:4:noisy", "grid:random-small"):
        life, age = played(task, 4, 8)
        assert exact_values(life, age) is None
