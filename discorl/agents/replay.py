"""Replay: a first-in first-out store of trajectories."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from discorl import tree
from discorl.errors import DiscorlError
from discorl.types import Rollout


class Replay:
    """Keeps the last ``capacity`` trajectories in tensors allocated once.

    Of the behaviour policy only the logits are kept; y, z and q are computed anew when learning.
    Time comes first in storage as in rollouts, so that a sample is one gather for each field.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise DiscorlError(f"replay capacity must be at least 1 trajectory, not {capacity}")
        self.capacity = capacity
        self._storage: Rollout | None = None  # [T, capacity, ...]
        self._next = 0
        self._size = 0

    def __len__(self) -> int:
        """Trajectories kept."""
        return self._size

    @property
    def num_bytes(self) -> int:
        """Memory allocated."""
        return sum(x.numel() * x.element_size() for x in tree.leaves(self._storage))

    def add(self, rollout: Rollout) -> None:
        """Store the trajectories of a rollout, in place of the oldest."""
        rollout = dataclasses.replace(rollout, actions=rollout.actions.to(torch.int32))
        num_new = rollout.actions.shape[1]
        if num_new > self.capacity:
            raise DiscorlError(
                f"a rollout of {num_new} trajectories does not fit a replay of {self.capacity}; "
                "raise replay_capacity or lower num_envs"
            )
        if self._storage is None:
            self._storage = tree.map(
                lambda x: x.new_empty(len(x), self.capacity, *x.shape[2:]), rollout
            )
        slots = torch.arange(self._next, self._next + num_new) % self.capacity
        slots = slots.to(rollout.actions.device)
        for stored, new in zip(tree.leaves(self._storage), tree.leaves(rollout), strict=True):
            stored.index_copy_(1, slots, new)
        self._next = (self._next + num_new) % self.capacity
        self._size = min(self._size + num_new, self.capacity)

    def sample(self, batch_size: int, generator: torch.Generator) -> Rollout:
        """Draw trajectories uniformly, with replacement. [T, batch_size, ...]"""
        if self._storage is None:
            raise DiscorlError("the replay is empty: add a rollout before sampling")
        index: Tensor = torch.randint(
            self._size, (batch_size,), generator=generator, device=generator.device
        ).to(self._storage.actions.device)
        batch = tree.map(lambda x: x.index_select(1, index), self._storage)
        return dataclasses.replace(batch, actions=batch.actions.long())
