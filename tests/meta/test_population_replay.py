"""Replay of agents that live side by side."""

from __future__ import annotations

from dataclasses import replace

import torch

from discorl import tree
from discorl.meta.population_replay import empty_replay, sample_replay, store
from discorl.types import Rollout
from tests.builders import rng


def marked(value: float, num_agents: int = 2, num_steps: int = 3, num_envs: int = 2) -> Rollout:
    """Trajectories that carry their number, agent 1's with 100 added."""
    lead = (num_agents, num_steps, num_envs)
    rewards = torch.full(lead, value) + 100 * torch.arange(num_agents).reshape(-1, 1, 1)
    zeros = torch.zeros(lead)
    return Rollout(zeros.unsqueeze(-1), zeros.long(), rewards, zeros, zeros.unsqueeze(-1))


def test_each_agent_draws_its_own_latest_trajectories() -> None:
    replay = empty_replay(marked(0.0), capacity=4)
    for value in (1.0, 2.0, 3.0):
        replay = store(replay, marked(value))
    drawn = sample_replay(replay, 200, rng())
    assert drawn.rewards.shape == (2, 3, 200)
    assert set(drawn.rewards[0].unique().tolist()) == {2.0, 3.0}  # room for two of two each
    assert set(drawn.rewards[1].unique().tolist()) == {102.0, 103.0}


def test_a_newborn_draws_nothing_from_before_its_birth() -> None:
    replay = empty_replay(marked(0.0), capacity=6)
    replay = store(replay, marked(1.0))
    replay = type(replay)(replay.storage, replay.next, torch.tensor([2, 0]))
    replay = store(replay, marked(2.0))
    drawn = sample_replay(replay, 200, rng())
    assert set(drawn.rewards[0].unique().tolist()) == {1.0, 2.0}
    assert set(drawn.rewards[1].unique().tolist()) == {102.0}


def test_stacked_frames_are_stored_singly_and_come_back_whole() -> None:
    """Two agents, three copies; an episode of agent 1 begins in the middle of a rollout."""
    frames = torch.randint(1, 255, (2, 9, 3, 1, 4, 4), dtype=torch.uint8, generator=rng())
    stacks = torch.cat([frames[:, i : i + 6] for i in range(4)], 3)  # [P, T, E, 4, H, W]
    stacks[1, 3, 2] = frames[1, 6, 2].expand(4, 4, 4)
    stacks[1, 4, 2] = torch.cat([frames[1, 6, 2].expand(3, 4, 4), frames[1, 7, 2]])
    stacks[1, 5, 2] = torch.cat([frames[1, 6, 2].expand(2, 4, 4), frames[1, 7, 2], frames[1, 8, 2]])
    rollout = replace(marked(1.0, 2, 6, 3), observations=stacks)
    replay = store(empty_replay(rollout, capacity=3, num_stacked=4), rollout, num_stacked=4)
    stored = sum(x.numel() for x in tree.leaves(replay.storage.observations))
    assert stored < stacks.numel() / 2
    drawn = sample_replay(replay, 60, rng(), num_stacked=4)
    assert drawn.observations.dtype == torch.uint8
    for agent in range(2):
        known = {bytes(x.numpy().tobytes()) for x in stacks[agent].transpose(0, 1)}
        seen = {bytes(x.numpy().tobytes()) for x in drawn.observations[agent].transpose(0, 1)}
        assert seen == known


def test_fresh_trajectories_come_first_and_only_once() -> None:
    """Three of the last four, then any of the last six."""
    replay = empty_replay(marked(0.0), capacity=6)
    for value in (0.0, 1.0, 2.0, 3.0):
        each = marked(value)
        each.rewards[:, :, 1] += 0.5  # two trajectories, each with a number of its own
        replay = store(replay, each)
    newest, kept = {2.0, 2.5, 3.0, 3.5}, {1.0, 1.5, 2.0, 2.5, 3.0, 3.5}
    rest: set[float] = set()
    orders = set()
    for seed in range(200):
        drawn = sample_replay(replay, 5, rng(seed), num_fresh=3, num_newest=4).rewards[:, 0] % 100
        for numbers in drawn.tolist():
            assert len({*numbers[:3]}) == 3 and {*numbers[:3]} <= newest
            rest |= {*numbers[3:]}
            orders.add(tuple(numbers[:3]))
    assert rest == kept
    assert len(orders) == 4 * 3 * 2, "every choice of three comes up"
