"""Catch: a ball falls down a board; the paddle at the bottom should be under it when it lands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from discorl.envs.tasks import sampling as draw
from discorl.envs.tasks.sampling import IntRange, Range
from discorl.envs.tasks.task import Step, Task, first_step, later_step
from discorl.errors import DiscorlError
from discorl.types import EnvSpec

MAX_CELLS = 4096
"""Of a board: pictures of the ball in each of them are kept, 64 MB of so many."""


class CatchSettings(NamedTuple):
    """Parameters of a task, each [B]. A small board lies in the upper left of the largest one."""

    rows: Tensor
    columns: Tensor
    paddle: Tensor  # where it starts
    ball: Tensor  # the column where the ball starts, or -1 for any
    caught: Tensor  # reward
    missed: Tensor  # reward
    mirrored: Tensor  # whether left and right change places


class CatchState(NamedTuple):
    """Positions, each [B]; without settings the board is the largest."""

    ball_row: Tensor
    ball_column: Tensor
    paddle: Tensor
    settings: CatchSettings | None = None


@dataclass(eq=False)
class Catch(Task[CatchSettings, CatchState]):
    """Actions: left, stay, right. Reward when the ball lands: +1 if caught, -1 if not."""

    rows: IntRange = 8
    columns: IntRange = 8
    caught: Range = 1.0
    missed: Range = -1.0
    fixed_starts: bool = False
    """Draw starts of the ball and the paddle that all episodes share."""
    shuffle_actions: bool = False

    def _prepare(self) -> EnvSpec:
        (fewest, rows), (narrowest, columns) = draw.ends(self.rows), draw.ends(self.columns)
        size = f"{self.rows}x{self.columns}"
        if fewest < 2 or narrowest < 1:
            raise DiscorlError(f"a Catch board needs at least 2 rows and 1 column, not {size}")
        draw.check_range("rows", self.rows, 2)
        draw.check_range("columns", self.columns, 1)
        if rows * columns > MAX_CELLS:
            raise DiscorlError(
                f"a Catch board has at most {MAX_CELLS} cells, such as 64x64, not {size}"
            )
        standard = (rows, columns, 1.0, -1.0) == (self.rows, self.columns, self.caught, self.missed)
        self._needs_settings = not standard or self.fixed_starts or self.shuffle_actions
        # A board for each place of the ball and of the paddle.
        self._boards = torch.eye(rows * columns, device=self.device).unflatten(1, (rows, columns))
        return EnvSpec(
            observation_shape=(rows, columns),
            num_actions=3,
            success_return=self.caught if isinstance(self.caught, int | float) else None,
            success_name="catch rate",
        )

    def _draw(self, num: int, generator: Generator) -> CatchSettings:
        rows, columns = (draw.integers(x, (num,), generator) for x in (self.rows, self.columns))
        caught, missed = (draw.uniform(x, (num,), generator) for x in (self.caught, self.missed))
        ball, paddle = torch.full_like(columns, -1), columns // 2
        if self.fixed_starts:
            ball, paddle = (
                (draw.uniform((0.0, 1.0), (num,), generator) * columns).long() for _ in range(2)
            )
        coin = draw.uniform((0.0, 1.0), (num,), generator) < 0.5
        return CatchSettings(
            rows, columns, paddle, ball, caught, missed, mirrored=coin & self.shuffle_actions
        )

    def reset(
        self, generator: Generator, settings: CatchSettings | None = None
    ) -> Step[CatchState]:
        if settings is None and not self._needs_settings:
            return first_step(*self._begin(None, generator))  # the quick way
        return super().reset(generator, settings)

    def _begin(self, s: CatchSettings | None, generator: Generator) -> tuple[CatchState, Tensor]:
        ball = self._new_balls(s, generator)
        paddle = torch.full_like(ball, self._boards.shape[2] // 2) if s is None else s.paddle
        state = CatchState(torch.zeros_like(ball), ball, paddle, s)
        return state, self._render(state)

    def step(self, state: CatchState, actions: Tensor, generator: Generator) -> Step[CatchState]:
        s, shift = state.settings, actions - 1
        if s is None:
            rows, columns = self._boards.shape[1:]
            home, caught, missed = columns // 2, 1.0, -1.0
            paddle = (state.paddle + shift).clamp_(0, columns - 1)
        else:
            rows, columns, home, _, caught, missed, mirrored = s
            paddle = state.paddle + torch.where(mirrored, -shift, shift)
            paddle = torch.minimum(paddle.clamp_(min=0), columns - 1)
        ball_row = state.ball_row + 1
        landed = ball_row == rows - 1
        reward = landed * torch.where(paddle == state.ball_column, caught, missed)
        state = CatchState(
            ball_row=ball_row.masked_fill(landed, 0),
            ball_column=torch.where(landed, self._new_balls(s, generator), state.ball_column),
            paddle=torch.where(landed, home, paddle),
            settings=s,
        )
        return state, later_step(self._render(state), reward, landed)

    def _new_balls(self, settings: CatchSettings | None, generator: Generator) -> Tensor:
        if settings is None:
            columns, size = self._boards.shape[2], (self.num_envs,)
            return torch.randint(columns, size, generator=generator, device=self.device)
        drawn = self._chances(generator) * settings.columns
        return torch.where(settings.ball < 0, drawn.long(), settings.ball)

    def _render(self, state: CatchState) -> Tensor:
        """1 where the ball and the paddle are; they never meet, see ``step``. [B, rows, columns]"""
        _, rows, columns = self._boards.shape
        bottom = (rows if state.settings is None else state.settings.rows) - 1
        ball = torch.add(state.ball_column, state.ball_row, alpha=columns)
        paddle = state.paddle + bottom * columns
        return self._boards.index_select(0, ball) + self._boards.index_select(0, paddle)
