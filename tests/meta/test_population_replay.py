"""Replay of agents that live side by side."""

from __future__ import annotations

import torch

from discorl.meta.population_replay import empty_replay, sample_replay, store, zero_rollouts
from discorl.types import Rollout
from tests.builders import rng


def marked(value: float, num_agents: int = 2, num_steps: int = 3, num_envs: int = 2) -> Rollout:
    """Trajectories that carry their number, agent 1's with 100 added."""
    lead = (num_agents, num_steps, num_envs)
    rewards = torch.full(lead, value) + 100 * torch.arange(num_agents).reshape(-1, 1, 1)
    zeros = torch.zeros(lead)
    return Rollout(zeros.unsqueeze(-1), zeros.long(), rewards, zeros, zeros.unsqueeze(-1))


def test_each_agent_draws_its_own_latest_trajectories() -> None:
    replay = empty_replay(zero_rollouts((2, 4, 3), torch.zeros(1, 1), 1))
    for value in (1.0, 2.0, 3.0):
        replay = store(replay, marked(value))
    drawn = sample_replay(replay, 200, rng())
    assert drawn.rewards.shape == (2, 3, 200)
    assert set(drawn.rewards[0].unique().tolist()) == {2.0, 3.0}  # room for two of two each
    assert set(drawn.rewards[1].unique().tolist()) == {102.0, 103.0}


def test_a_newborn_draws_nothing_from_before_its_birth() -> None:
    replay = empty_replay(zero_rollouts((2, 6, 3), torch.zeros(1, 1), 1))
    replay = store(replay, marked(1.0))
    replay = type(replay)(replay.storage, replay.next, torch.tensor([2, 0]))
    replay = store(replay, marked(2.0))
    drawn = sample_replay(replay, 200, rng())
    assert set(drawn.rewards[0].unique().tolist()) == {1.0, 2.0}
    assert set(drawn.rewards[1].unique().tolist()) == {102.0}
