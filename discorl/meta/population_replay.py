"""Replay for agents that live side by side: each keeps its own last trajectories.

Like ``agents/replay.py`` it writes into tensors that are allocated once and stores stacked frames
singly. Here agents forget one by one when they are reborn, and all of it is tensors with an axis of
agents, which a checkpoint saves with the rest of a group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from discorl import tree
from discorl.agents.frames import restack_observations, unstack_observations
from discorl.types import Memory, Rollout, TimeStep


@tree.register
@dataclass(frozen=True)
class PopulationReplay:
    """Trajectories of each agent in a ring that all agents write at the same place."""

    storage: Rollout  # leaves [P, C, T, ...], frames of stacked observations singly
    next: Tensor  # [], where the next trajectories go
    size: Tensor  # [P], trajectories that are the agent's own; 0 at its birth


def blank_rollout(
    lead: tuple[int, int, int], shown: TimeStep, num_actions: int, memory: Memory = None
) -> Rollout:
    """Zeros in the place of a rollout of agents that are shown such time steps.

    ``lead`` is [P, T, B]; ``memory`` is that of any batch.
    """
    (num_agents, _, batch), mask = lead, shown.action_mask
    zeros = torch.zeros(lead, device=shown.reward.device)
    return Rollout(
        observations=tree.map(lambda x: x.new_zeros(*lead, *x.shape[1:]), shown.observation),
        actions=zeros.long(),
        rewards=zeros,
        discounts=zeros,
        behaviour_logits=zeros.new_zeros(*lead, num_actions),
        is_dead=None if shown.is_dead is None else zeros.bool(),
        memory=tree.map(lambda x: x.new_zeros(num_agents, 1, batch, *x.shape[1:]), memory),
        action_mask=None if mask is None else mask.new_ones(*lead, num_actions),
    )


def empty_replay(one: Rollout, capacity: int, num_stacked: int = 1) -> PopulationReplay:
    """Room for ``capacity`` trajectories of each agent, like those of ``one`` [P, T, B, ...]."""
    packed = _pack(one, num_stacked)
    storage = tree.map(lambda x: x.new_zeros(len(x), capacity, *x.shape[2:]), packed)
    size = storage.actions.new_zeros(len(storage.actions))
    return PopulationReplay(storage, size.new_zeros(()), size)


def store(replay: PopulationReplay, rollout: Rollout, num_stacked: int = 1) -> PopulationReplay:
    """Write the trajectories of a rollout, leaves [P, T, E, ...], over the oldest."""
    rows = _pack(rollout, num_stacked)
    capacity, num_new = replay.storage.actions.shape[1], rows.actions.shape[1]
    places = (replay.next + torch.arange(num_new, device=replay.next.device)) % capacity
    for kept, new in zip(tree.leaves(replay.storage), tree.leaves(rows), strict=True):
        kept.index_copy_(1, places, new)
    return PopulationReplay(
        replay.storage,
        (replay.next + num_new) % capacity,
        (replay.size + num_new).clamp(max=capacity),
    )


def sample_replay(
    replay: PopulationReplay,
    num: int,
    generator: torch.Generator,
    num_stacked: int = 1,
    num_fresh: int = 0,
    num_newest: int = 0,
) -> Rollout:
    """Draw trajectories of each agent, uniformly with replacement. Leaves [P, T, num, ...]

    The first ``num_fresh`` of them come from the ``num_newest`` instead, without replacement. All
    agents must have as many.
    """
    num_agents, capacity = replay.storage.actions.shape[:2]
    device = generator.device
    uniform = torch.rand(num_agents, num - num_fresh, generator=generator, device=device)
    back = (uniform.to(replay.size.device) * replay.size.unsqueeze(1)).long()
    if num_fresh:
        order = torch.rand(num_agents, num_newest, generator=generator, device=device).argsort(1)
        back = torch.cat([order[:, :num_fresh].to(back.device), back], 1)
    places = (replay.next - 1 - back) % capacity
    agents = torch.arange(num_agents, device=places.device).unsqueeze(1)
    drawn = tree.map(lambda x: x[agents, places].transpose(1, 2), replay.storage)
    if num_stacked == 1:
        return drawn
    frames = tree.map(_time_first, drawn.observations)
    stacks = restack_observations(frames, num_stacked)
    return replace(drawn, observations=_agents_first(stacks, num_agents))


def _pack(rollout: Rollout, num_stacked: int) -> Rollout:
    """What is stored of a rollout: a row for each trajectory. [P, T, E, ...] -> [P, E, T, ...]"""
    if num_stacked > 1:
        stacks = tree.map(_time_first, rollout.observations)
        frames = unstack_observations(stacks, num_stacked)
        frames = _agents_first(frames, len(rollout.actions))
        rollout = replace(rollout, observations=frames)
    return tree.map(lambda x: x.transpose(1, 2), rollout)


def _time_first(x: Tensor) -> Tensor:
    """[P, T, E, ...] -> [T, P * E, ...]"""
    return x.transpose(0, 1).flatten(1, 2)


def _agents_first(x: Any, num_agents: int) -> Any:
    """The way back, for each tensor."""
    return tree.map(lambda x: x.unflatten(1, (num_agents, -1)).transpose(0, 1), x)
