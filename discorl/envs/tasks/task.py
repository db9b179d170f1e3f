"""What tensor-native tasks have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch import Generator, Tensor

from discorl import tree
from discorl.envs.base import check_copies
from discorl.errors import DiscorlError
from discorl.types import EnvSpec, TimeStep

Settings = TypeVar("Settings", bound=tuple[Any, ...])
State = TypeVar("State", bound=tuple[Any, ...])
Step: TypeAlias = tuple[State, TimeStep]
"""What resetting and stepping return."""

CPU = torch.device("cpu")


@dataclass(eq=False)
class Task(ABC, Generic[Settings, State]):
    """Copies on one device, each with settings of its own (see ``TensorEnv``).

    A task has its parameters as fields and says what an agent sees of it (``_prepare``), how its
    settings are drawn (``_draw``), how an episode begins (``_begin``) and what an action does
    (``step``). It keeps nothing from one step to the next.
    """

    num_envs: int
    _: KW_ONLY
    device: torch.device = CPU
    task_seed: int = 0

    def __post_init__(self) -> None:
        check_copies(self.num_envs)
        self.device = torch.device(self.device)
        self._copies = torch.arange(self.num_envs, device=self.device)
        self.spec = self._prepare()

    @abstractmethod
    def _prepare(self) -> EnvSpec:
        """Check the parameters, and make what every step needs on ``device``."""

    def sample_settings(self, num: int, generator: Generator) -> Settings:
        """Draw ``num`` tasks, from the values and ranges given to the constructor. [num, ...]"""
        return tree.to(self._draw(num, generator), self.device)

    def reset(self, generator: Generator, settings: Settings | None = None) -> Step[State]:
        """Begin with ``settings`` [B, ...]; None: all copies are the one task of ``task_seed``."""
        if settings is None:
            # Drawn on the CPU, so that the task is the same on every device.
            drawn = self.sample_settings(1, Generator().manual_seed(self.task_seed))
            settings = tree.map(lambda x: x.expand(self.num_envs, *x.shape[1:]).contiguous(), drawn)
        for x in tree.leaves(settings):
            if len(x) != self.num_envs:
                raise DiscorlError(
                    f"got {len(x)} settings for {self.num_envs} copies: pass one for each, for "
                    "example with repeat_interleave"
                )
        return first_step(*self._begin(settings, generator))

    @abstractmethod
    def step(self, state: State, actions: Tensor, generator: Generator) -> Step[State]:
        """Take ``actions`` [B]; see ``TimeStep`` for what comes back at the end of an episode."""

    @abstractmethod
    def _draw(self, num: int, generator: Generator) -> Settings:
        """Settings of ``num`` tasks, where the generator is."""

    @abstractmethod
    def _begin(self, s: Settings, generator: Generator) -> tuple[State, Tensor]:
        """The state in which episodes begin, and what is observed of it."""

    def _chances(self, generator: Generator, *shape: int) -> Tensor:
        """Numbers from 0 to 1, drawn for each copy. [B, *shape]"""
        size = (self.num_envs, *shape)
        return torch.rand(size, generator=generator, device=self.device)


def first_step(state: State, observation: Tensor) -> Step[State]:
    """The state, with the time step of a reset."""
    zeros = observation.new_zeros(len(observation))
    return state, TimeStep(observation, zeros, torch.ones_like(zeros))


def later_step(observation: Tensor, reward: Tensor, ended: Tensor) -> TimeStep:
    """The time step after an action; ``ended`` is bool."""
    return TimeStep(observation, reward, (~ended).float())


def in_order(order: Tensor | None, actions: Tensor) -> Tensor:
    """What ``actions`` [B] do, if they are shuffled by ``order`` [B, A]."""
    return actions if order is None else order.gather(1, actions[:, None])[:, 0]
