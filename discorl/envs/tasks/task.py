"""What tensor-native tasks have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from discorl import tree
from discorl.envs.base import check_copies
from discorl.errors import DiscorlError
from discorl.types import EnvSpec, TimeStep

Settings = TypeVar("Settings", bound=tuple[Any, ...])
State = TypeVar("State", bound=tuple[Any, ...])


class Task(ABC, Generic[Settings, State]):
    """Copies on one device, each with settings of its own (see ``TensorEnv``).

    A task says how its settings are drawn (``_draw``), how an episode begins (``_begin``) and what
    an action does (``step``). It keeps nothing from one step to the next.
    """

    def __init__(
        self, num_envs: int, device: torch.device | str, task_seed: int, spec: EnvSpec
    ) -> None:
        check_copies(num_envs)
        self.num_envs = num_envs
        self.device = torch.device(device)
        self.task_seed = task_seed
        self.spec = spec
        self._copies = torch.arange(num_envs, device=self.device)

    def sample_settings(self, num: int, generator: torch.Generator) -> Settings:
        """Draw ``num`` tasks, from the values and ranges given to the constructor. [num, ...]"""
        return tree.to(self._draw(num, generator), self.device)

    def reset(
        self, generator: torch.Generator, settings: Settings | None = None
    ) -> tuple[State, TimeStep]:
        """Begin with ``settings`` [B, ...]; None: all copies are the one task of ``task_seed``."""
        if settings is None:
            # Drawn on the CPU, so that the task is the same on every device.
            drawn = self.sample_settings(1, torch.Generator().manual_seed(self.task_seed))
            settings = tree.map(lambda x: x.expand(self.num_envs, *x.shape[1:]).contiguous(), drawn)
        for x in tree.leaves(settings):
            if len(x) != self.num_envs:
                raise DiscorlError(
                    f"{len(x)} settings were given to {self.num_envs} copies: give one for each, "
                    "as by repeat_interleave"
                )
        return first_step(*self._begin(settings, generator))

    @abstractmethod
    def step(
        self, state: State, actions: Tensor, generator: torch.Generator
    ) -> tuple[State, TimeStep]:
        """Take ``actions`` [B]; see ``TimeStep`` for what comes back at the end of an episode."""

    @abstractmethod
    def _draw(self, num: int, generator: torch.Generator) -> Settings:
        """Settings of ``num`` tasks, where the generator is."""

    @abstractmethod
    def _begin(self, s: Settings, generator: torch.Generator) -> tuple[State, Tensor]:
        """The state in which episodes begin, and what is observed of it."""

    def _chances(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Numbers from 0 to 1, drawn for each copy. [B, *shape]"""
        size = (self.num_envs, *shape)
        return torch.rand(size, generator=generator, device=self.device)


def first_step(state: State, observation: Tensor) -> tuple[State, TimeStep]:
    """The state, with the time step of a reset."""
    zeros = observation.new_zeros(len(observation))
    return state, TimeStep(observation, zeros, torch.ones_like(zeros))


def later_step(observation: Tensor, reward: Tensor, ended: Tensor) -> TimeStep:
    """The time step after an action; ``ended`` is bool."""
    return TimeStep(observation, reward, 1.0 - ended.float())


def in_order(order: Tensor | None, actions: Tensor) -> Tensor:
    """What ``actions`` [B] do, if they are shuffled by ``order`` [B, A]."""
    return actions if order is None else order.gather(1, actions[:, None])[:, 0]
