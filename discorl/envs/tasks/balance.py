"""Balance: a drawn linear system that drifts apart unless it is pushed back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from discorl.envs.tasks import sampling as draw
from discorl.envs.tasks.sampling import IntRange, Range
from discorl.envs.tasks.task import Step, Task, later_step
from discorl.types import EnvSpec

START = 0.1
"""Episodes begin within this distance of the middle, along each axis."""


class BalanceSettings(NamedTuple):
    """Parameters of a task. D dimensions, A actions."""

    drift: Tensor  # [B, D, D], what a step does to the place
    pushes: Tensor  # [B, A, D], what an action adds
    horizon: Tensor  # [B]


class BalanceState(NamedTuple):
    """Where it is [B, D], and the steps since the beginning [B]."""

    place: Tensor
    time: Tensor
    settings: BalanceSettings


@dataclass(eq=False)
class Balance(Task[BalanceSettings, BalanceState]):
    """Every step is worth 1; an episode ends when a coordinate leaves [-1, 1], and at the horizon.

    A step turns the place by a drawn rotation and takes it ``growth`` times as far from the middle;
    then the action pushes it by ``force`` in a drawn direction. The pushes of all actions cancel.
    """

    num_dimensions: int = 3
    num_actions: int = 3
    horizon: IntRange = (50, 300)
    growth: Range = (1.02, 1.08)
    turn: Range = (0.0, 0.3)
    """The size of the rotation in a step, in radians."""
    force: Range = (0.05, 0.15)

    def _prepare(self) -> EnvSpec:
        draw.check_count("the number of dimensions of balance", self.num_dimensions, 1, 100)
        draw.check_count("the number of actions of balance", self.num_actions, 2, 100)
        draw.check_range("horizon", self.horizon, 1)
        for name in ("growth", "turn", "force"):
            draw.check_range(name, getattr(self, name), 0)
        return EnvSpec(observation_shape=(self.num_dimensions,), num_actions=self.num_actions)

    def _draw(self, num: int, generator: Generator) -> BalanceSettings:
        size = self.num_dimensions
        where = {"generator": generator, "device": generator.device}
        skew = torch.randn(num, size, size, **where)
        skew = skew - skew.transpose(1, 2)
        scale = skew.flatten(1).norm(dim=1).clamp(min=1e-6)[:, None, None]
        angle = draw.uniform(self.turn, (num, 1, 1), generator)
        growth = draw.uniform(self.growth, (num, 1, 1), generator)
        pushes = torch.randn(num, self.num_actions, size, **where)
        pushes = pushes - pushes.mean(1, keepdim=True)
        pushes = pushes / pushes.norm(dim=2).mean(1)[:, None, None].clamp(min=1e-6)
        return BalanceSettings(
            drift=growth * torch.matrix_exp(angle * skew / scale),
            pushes=draw.uniform(self.force, (num, 1, 1), generator) * pushes,
            horizon=draw.log_integers(self.horizon, (num,), generator),
        )

    def _begin(self, s: BalanceSettings, generator: Generator) -> tuple[BalanceState, Tensor]:
        state = BalanceState(self._new_places(generator), torch.zeros_like(s.horizon), s)
        return state, state.place

    def step(
        self, state: BalanceState, actions: Tensor, generator: Generator
    ) -> Step[BalanceState]:
        s = state.settings
        place = torch.einsum("bij,bj->bi", s.drift, state.place) + s.pushes[self._copies, actions]
        time = state.time + 1
        ended = (place.abs() > 1).any(1) | (time >= s.horizon)
        place = torch.where(ended[:, None], self._new_places(generator), place)
        state = BalanceState(place, torch.where(ended, 0, time), s)
        return state, later_step(place, torch.ones_like(place[:, 0]), ended)

    def _new_places(self, generator: Generator) -> Tensor:
        return START * (2 * self._chances(generator, self.num_dimensions) - 1)
