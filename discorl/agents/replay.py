"""Replay: a first-in first-out store of trajectories."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor

from discorl import tree
from discorl.agents.frames import restack_observations, unstack_observations
from discorl.bounds import check_between
from discorl.errors import DiscorlError
from discorl.types import Rollout


class Replay:
    """Keeps the last ``capacity`` trajectories in tensors allocated once.

    Of the behaviour policy only the logits are kept; y, z and q are recomputed when learning.
    Every field keeps its type, so images stay bytes. If observations, or some of their tensors, are
    stacks of ``frame_stack`` frames, each frame is kept once. Time comes first in storage, as in
    rollouts, so that a sample is one gather per field.
    """

    def __init__(self, capacity: int, frame_stack: int = 1) -> None:
        if capacity < 1:
            raise DiscorlError(f"replay capacity must be at least 1 trajectory, not {capacity}")
        if frame_stack < 1:
            raise DiscorlError(f"frame_stack must be at least 1, not {frame_stack}")
        self.capacity = capacity
        self.frame_stack = frame_stack
        self._storage: Rollout | None = None  # [T, capacity, ...]
        self._next = 0
        self._size = 0
        self._num_newest = 0  # trajectories of the last rollout

    def __len__(self) -> int:
        """Trajectories kept."""
        return self._size

    @property
    def num_bytes(self) -> int:
        """Memory allocated."""
        return _num_bytes(self._storage)

    def add(self, rollout: Rollout) -> None:
        """Store the trajectories of a rollout, in place of the oldest."""
        num_new = rollout.actions.shape[1]
        if num_new > self.capacity:
            raise DiscorlError(
                f"a rollout of {num_new} trajectories does not fit in a replay of {self.capacity}: "
                "raise replay_capacity or lower num_envs"
            )
        packed = self._pack(rollout)
        if self._storage is None:
            self._storage = self._allocate(packed)
        device = rollout.actions.device
        slots = torch.arange(self._next, self._next + num_new, device=device) % self.capacity
        for stored, new in zip(tree.leaves(self._storage), tree.leaves(packed), strict=True):
            stored.index_copy_(1, slots, new)
        self._next = (self._next + num_new) % self.capacity
        self._size = min(self._size + num_new, self.capacity)
        self._num_newest = num_new

    def sample(self, batch_size: int, generator: torch.Generator, num_fresh: int = 0) -> Rollout:
        """Draw trajectories uniformly, with replacement. [T, batch_size, ...]

        ``num_fresh`` of them come from the last rollout instead, without replacement; if it has
        fewer, the newest ones before it make up the difference.
        """
        return self.take(self.draw(batch_size, generator, num_fresh))

    def draw(self, batch_size: int, generator: torch.Generator, num_fresh: int = 0) -> Tensor:
        """The slots of a sample. [batch_size]"""
        if self._storage is None:
            raise DiscorlError("the replay is empty: add a rollout before sampling")
        device = generator.device
        num_fresh = min(num_fresh, batch_size, self._size)
        index: Tensor = torch.randint(
            self._size, (batch_size - num_fresh,), generator=generator, device=device
        )
        if num_fresh:
            num_newest = min(max(num_fresh, self._num_newest), self._size)
            age = torch.randperm(num_newest, generator=generator, device=device)[:num_fresh]
            index = torch.cat([(self._next - 1 - age) % self.capacity, index])
        return index.to(self._storage.actions.device)

    def slots(self) -> Tensor:
        """All that hold a trajectory."""
        assert self._storage is not None
        return torch.arange(self._size, device=self._storage.actions.device)

    def take(self, slots: Tensor) -> Rollout:
        """The trajectories in some slots, until the next ``add``. [T, len(slots), ...]"""
        assert self._storage is not None
        return self._unpack(tree.map(lambda x: x.index_select(1, slots), self._storage))

    def ages(self, slots: Tensor) -> Tensor:
        """How many rollouts came after the trajectories in some slots, all as large as the last."""
        return (self._next - 1 - slots) % self.capacity // max(self._num_newest, 1)

    def state_dict(self) -> dict[str, Any]:
        """All that is kept; not copied, so it changes with the next ``add``."""
        return {
            "storage": self._storage,
            "next": self._next,
            "size": self._size,
            "num_newest": self._num_newest,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned, from a replay of the same capacity."""
        storage: Rollout | None = state["storage"]
        if storage is not None and storage.actions.shape[1] != self.capacity:
            raise DiscorlError(
                f"the saved replay holds {storage.actions.shape[1]} trajectories, but this one "
                f"holds {self.capacity}: keep replay_capacity as it was"
            )
        for name, most in (("next", self.capacity - 1), ("size", self.capacity)):
            check_between(0, most, f"replay.{name} in the checkpoint", state[name])
        check_between(0, state["size"], "replay.num_newest in the checkpoint", state["num_newest"])
        self._storage, self._next, self._size = storage, state["next"], state["size"]
        self._num_newest = state["num_newest"]
        for x in tree.leaves(storage):
            x[:, self._size :].zero_()  # earlier versions saved what happened to be in memory

    def _pack(self, rollout: Rollout) -> Rollout:
        observations: Any = rollout.observations
        if self.frame_stack > 1:
            observations = unstack_observations(observations, self.frame_stack)
        # The environment's own rewards are for statistics; nothing is learnt from them.
        return dataclasses.replace(
            rollout,
            observations=observations,
            actions=rollout.actions.to(torch.int32),
            raw_rewards=None,
        )

    def _unpack(self, packed: Rollout) -> Rollout:
        observations: Any = packed.observations
        if self.frame_stack > 1:
            observations = restack_observations(observations, self.frame_stack)
        return dataclasses.replace(packed, observations=observations, actions=packed.actions.long())

    def _allocate(self, packed: Rollout) -> Rollout:
        try:
            return tree.map(lambda x: zeros_like(x, (len(x), self.capacity, *x.shape[2:])), packed)
        except (RuntimeError, MemoryError):  # running out of memory is one, on every device
            size = _num_bytes(packed) * self.capacity / packed.actions.shape[1]
            raise DiscorlError(
                f"not enough memory for a replay of {self.capacity} trajectories "
                f"({size / 1e9:.1f} GB): lower replay_capacity or replay_transitions"
            ) from None


def zeros_like(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Zeros of another shape, which on the CPU take up no memory before something is written.

    What is saved is then the same in equal runs, and never what the memory held before.
    """
    if x.device.type != "cpu" or x.dtype == torch.bfloat16:  # which NumPy does not have
        return x.new_zeros(shape)
    return torch.from_numpy(np.zeros(shape, x.new_empty(0).numpy().dtype))


def num_trajectories(num_transitions: int, rollout_length: int) -> int:
    """How many trajectories hold this many transitions; each time step is one."""
    return -(-num_transitions // rollout_length)


def _num_bytes(tensors: Any) -> int:
    return sum(x.numel() * x.element_size() for x in tree.leaves(tensors))
