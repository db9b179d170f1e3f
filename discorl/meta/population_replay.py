"""Replay for agents that live side by side: each keeps its own last trajectories.

Unlike ``agents/replay.py``, which writes into tensors allocated once and packs its frames: here a
window must leave its initial state unchanged, agents forget one by one when they are reborn, and
all of it is tensors, which a checkpoint saves with the rest of a group.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from discorl import tree
from discorl.types import Rollout


@tree.register
@dataclass(frozen=True)
class PopulationReplay:
    """Trajectories of each agent in a ring that all agents write at the same place."""

    storage: Rollout  # leaves [P, C, T, ...]
    next: Tensor  # [], where the next trajectories go
    size: Tensor  # [P], trajectories that are the agent's own; 0 at its birth


def zero_rollouts(lead: tuple[int, ...], observation: Tensor, num_actions: int) -> Rollout:
    """Room for rollouts of agents that see observations like ``observation`` [B, ...].

    ``lead`` is the shape of what has one number for each time step.
    """
    zeros = torch.zeros(lead, device=observation.device)
    return Rollout(
        observations=observation.new_zeros(*lead, *observation.shape[1:]),
        actions=zeros.long(),
        rewards=zeros,
        discounts=zeros,
        behaviour_logits=zeros.new_zeros(*lead, num_actions),
    )


def empty_replay(storage: Rollout) -> PopulationReplay:
    """Nothing yet, in a storage with leaves [P, C, T, ...]."""
    size = storage.actions.new_zeros(len(storage.actions))
    return PopulationReplay(storage, size.new_zeros(()), size)


def store(replay: PopulationReplay, rollout: Rollout) -> PopulationReplay:
    """Add the trajectories of a rollout, leaves [P, T, E, ...], in place of the oldest."""
    rows = tree.map(lambda x: x.transpose(1, 2), rollout)
    capacity, num_new = replay.storage.actions.shape[1], rows.actions.shape[1]
    places = (replay.next + torch.arange(num_new, device=replay.next.device)) % capacity
    return PopulationReplay(
        tree.map(lambda old, new: old.index_copy(1, places, new), replay.storage, rows),
        (replay.next + num_new) % capacity,
        (replay.size + num_new).clamp(max=capacity),
    )


def sample_replay(replay: PopulationReplay, num: int, generator: torch.Generator) -> Rollout:
    """Draw trajectories of each agent, uniformly with replacement. Leaves [P, T, num, ...]"""
    num_agents, capacity = replay.storage.actions.shape[:2]
    uniform = torch.rand(num_agents, num, generator=generator, device=generator.device)
    back = (uniform.to(replay.size.device) * replay.size.unsqueeze(1)).long()
    places = (replay.next - 1 - back) % capacity
    agents = torch.arange(num_agents, device=places.device).unsqueeze(1)
    return tree.map(lambda x: x[agents, places].transpose(1, 2), replay.storage)
