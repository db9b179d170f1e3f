"""Deep sea: a treasure that only one of exponentially many ways down leads to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from discorl.envs.tasks import sampling as draw
from discorl.envs.tasks.sampling import IntRange, Range
from discorl.envs.tasks.task import Step, Task, later_step
from discorl.types import EnvSpec


class DeepSeaSettings(NamedTuple):
    """Parameters of a task. A small sea lies in the upper left of the largest one."""

    size: Tensor  # [B]
    move_cost: Tensor  # [B]
    flipped: Tensor | None  # [B, N * N], where action 0 is right, if actions are shuffled


class DeepSeaState(NamedTuple):
    """Where the diver is, each [B]."""

    row: Tensor
    column: Tensor
    settings: DeepSeaSettings


@dataclass(eq=False)
class DeepSea(Task[DeepSeaSettings, DeepSeaState]):
    """Actions: left, right; every step goes one row down, and row ``size`` ends the episode.

    A step to the right costs ``move_cost / size``; going right in the lower right corner finds the
    treasure, worth 1. ``shuffle_actions`` draws for each cell which action is left. Observed is
    the place, one-hot. The best return is ``1 - move_cost``.
    """

    size: IntRange = 10
    move_cost: Range = 0.01
    shuffle_actions: bool = False

    def _prepare(self) -> EnvSpec:
        draw.check_range("the size of a deep sea", self.size, 2, 100)
        draw.check_range("move_cost", self.move_cost, 0, 0.5)
        self._width = draw.ends(self.size)[1]
        return EnvSpec(
            observation_shape=(self._width, self._width),
            num_actions=2,
            # With the treasure at least 0.5, without it at most 0; left room for rounding.
            success_return=0.49,
            success_name="treasure rate",
        )

    def _draw(self, num: int, generator: Generator) -> DeepSeaSettings:
        return DeepSeaSettings(
            size=draw.integers(self.size, (num,), generator),
            move_cost=draw.uniform(self.move_cost, (num,), generator),
            flipped=draw.uniform((0.0, 1.0), (num, self._width**2), generator) < 0.5
            if self.shuffle_actions
            else None,
        )

    def _begin(self, s: DeepSeaSettings, generator: Generator) -> tuple[DeepSeaState, Tensor]:
        del generator  # nothing is random within a task
        zeros = torch.zeros_like(s.size)
        state = DeepSeaState(zeros, zeros, s)
        return state, self._observe(state)

    def step(
        self, state: DeepSeaState, actions: Tensor, generator: Generator
    ) -> Step[DeepSeaState]:
        del generator
        s = state.settings
        right = actions == 1
        if s.flipped is not None:
            right = right ^ s.flipped[self._copies, state.row * self._width + state.column]
        last = s.size - 1
        # Only the diver who always went right is in the last column in time to go right again.
        reward = right * ((state.column == last).float() - s.move_cost / s.size)
        ended = state.row == last
        column = torch.minimum((state.column + 2 * right - 1).clamp_(min=0), last)
        state = DeepSeaState(torch.where(ended, 0, state.row + 1), column * ~ended, s)
        return state, later_step(self._observe(state), reward, ended)

    def _observe(self, state: DeepSeaState) -> Tensor:
        place = torch.add(state.column, state.row, alpha=self._width)
        zeros = torch.zeros(self.num_envs, self._width**2, device=self.device)
        return zeros.scatter_(1, place[:, None], 1.0).unflatten(1, (self._width, self._width))
