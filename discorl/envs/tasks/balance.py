"""Balance: a drawn linear system that drifts apart unless it is pushed back."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from discorl.envs.tasks import sampling as draw
from discorl.envs.tasks.sampling import IntRange, Range
from discorl.envs.tasks.task import Task, later_step
from discorl.types import EnvSpec, TimeStep

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


class Balance(Task[BalanceSettings, BalanceState]):
    """Every step is worth 1; an episode ends when a coordinate leaves [-1, 1], and at the horizon.

    A step turns the place by a drawn rotation and takes it ``growth`` times as far from the middle;
    then the action pushes it by ``force`` in a drawn direction. The pushes of all actions cancel.
    """

    def __init__(
        self,
        num_envs: int,
        num_dimensions: int = 3,
        num_actions: int = 3,
        horizon: IntRange = (50, 300),
        device: torch.device | str = "cpu",
        *,
        growth: Range = (1.02, 1.08),
        turn: Range = (0.0, 0.3),
        force: Range = (0.05, 0.15),
        task_seed: int = 0,
    ) -> None:
        """``turn`` is the size of the rotation in a step, in radians."""
        draw.check_count("the number of dimensions of balance", num_dimensions, 1, 100)
        draw.check_count("the number of actions of balance", num_actions, 2, 100)
        draw.check_range("horizon", horizon, 1)
        draw.check_range("growth", growth, 0)
        draw.check_range("turn", turn, 0)
        draw.check_range("force", force, 0)
        spec = EnvSpec(observation_shape=(num_dimensions,), num_actions=num_actions)
        super().__init__(num_envs, device, task_seed, spec)
        self._horizon = horizon
        self._growth, self._turn, self._force = growth, turn, force

    def _draw(self, num: int, generator: torch.Generator) -> BalanceSettings:
        size, num_actions = self.spec.observation_shape[0], self.spec.num_actions
        where = {"generator": generator, "device": generator.device}
        skew = torch.randn(num, size, size, **where)
        skew = skew - skew.transpose(1, 2)
        scale = skew.flatten(1).norm(dim=1).clamp(min=1e-6)[:, None, None]
        angle = draw.uniform(self._turn, (num, 1, 1), generator)
        growth = draw.uniform(self._growth, (num, 1, 1), generator)
        pushes = torch.randn(num, num_actions, size, **where)
        pushes = pushes - pushes.mean(1, keepdim=True)
        pushes = pushes / pushes.norm(dim=2).mean(1)[:, None, None].clamp(min=1e-6)
        return BalanceSettings(
            drift=growth * torch.matrix_exp(angle * skew / scale),
            pushes=draw.uniform(self._force, (num, 1, 1), generator) * pushes,
            horizon=draw.log_integers(self._horizon, (num,), generator),
        )

    def _begin(self, s: BalanceSettings, generator: torch.Generator) -> tuple[BalanceState, Tensor]:
        state = BalanceState(self._new_places(generator), torch.zeros_like(s.horizon), s)
        return state, state.place

    def step(
        self, state: BalanceState, actions: Tensor, generator: torch.Generator
    ) -> tuple[BalanceState, TimeStep]:
        s = state.settings
        place = torch.einsum("bij,bj->bi", s.drift, state.place) + s.pushes[self._copies, actions]
        time = state.time + 1
        ended = (place.abs() > 1).any(1) | (time >= s.horizon)
        place = torch.where(ended[:, None], self._new_places(generator), place)
        state = BalanceState(place, torch.where(ended, 0, time), s)
        return state, later_step(place, torch.ones_like(place[:, 0]), ended)

    def _new_places(self, generator: torch.Generator) -> Tensor:
        return START * (2 * self._chances(generator, *self.spec.observation_shape) - 1)
