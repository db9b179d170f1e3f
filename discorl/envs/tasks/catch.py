"""Catch: a ball falls down a board; the paddle at the bottom should be under it when it lands."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from discorl.envs.tasks import sampling as draw
from discorl.envs.tasks.sampling import IntRange, Range
from discorl.envs.tasks.task import Task, first_step
from discorl.errors import DiscorlError
from discorl.types import EnvSpec, TimeStep

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


class Catch(Task[CatchSettings, CatchState]):
    """Actions: left, stay, right. Reward when the ball lands: +1 if caught, -1 if not."""

    def __init__(
        self,
        num_envs: int,
        rows: IntRange = 8,
        columns: IntRange = 8,
        device: torch.device | str = "cpu",
        *,
        caught: Range = 1.0,
        missed: Range = -1.0,
        fixed_starts: bool = False,
        shuffle_actions: bool = False,
        task_seed: int = 0,
    ) -> None:
        """``fixed_starts`` draws starts of the ball and the paddle that all episodes share."""
        if draw.int_ends(rows)[0] < 2 or draw.int_ends(columns)[0] < 1:
            raise DiscorlError(
                f"a Catch board needs 2 rows and 1 column or more, not {rows}x{columns}"
            )
        draw.check_range("rows", rows, 2)
        draw.check_range("columns", columns, 1)
        if draw.int_ends(rows)[1] * draw.int_ends(columns)[1] > MAX_CELLS:
            raise DiscorlError(
                f"a Catch board has at most {MAX_CELLS} cells, such as 64x64, not {rows}x{columns}"
            )
        self.rows = draw.int_ends(rows)[1]
        self.columns = draw.int_ends(columns)[1]
        spec = EnvSpec(
            observation_shape=(self.rows, self.columns),
            num_actions=3,
            success_return=caught if isinstance(caught, int | float) else None,
            success_name="catch rate",
        )
        super().__init__(num_envs, device, task_seed, spec)
        self._row_range, self._column_range = rows, columns
        self._rewards = caught, missed
        self._fixed_starts, self._shuffle_actions = fixed_starts, shuffle_actions
        standard = (self.rows, self.columns, 1.0, -1.0) == (rows, columns, caught, missed)
        self._needs_settings = not standard or fixed_starts or shuffle_actions
        # A board for each place of the ball and of the paddle.
        size = self.rows * self.columns
        boards = torch.eye(size, device=self.device).unflatten(1, (self.rows, self.columns))
        self._boards, self._paddle_boards = boards, boards[-self.columns :]

    def _draw(self, num: int, generator: torch.Generator) -> CatchSettings:
        rows, columns = (
            draw.integers(x, (num,), generator) for x in (self._row_range, self._column_range)
        )
        caught, missed = (draw.uniform(x, (num,), generator) for x in self._rewards)
        if self._fixed_starts:
            ball, paddle = (
                (draw.uniform((0.0, 1.0), (num,), generator) * columns).long() for _ in range(2)
            )
        else:
            ball, paddle = torch.full_like(columns, -1), columns // 2
        coin = draw.uniform((0.0, 1.0), (num,), generator) < 0.5
        mirrored = coin if self._shuffle_actions else torch.zeros_like(coin)
        return CatchSettings(rows, columns, paddle, ball, caught, missed, mirrored)

    def reset(
        self, generator: torch.Generator, settings: CatchSettings | None = None
    ) -> tuple[CatchState, TimeStep]:
        if settings is None and not self._needs_settings:
            return first_step(*self._begin(None, generator))  # the quick way
        return super().reset(generator, settings)

    def _begin(
        self, s: CatchSettings | None, generator: torch.Generator
    ) -> tuple[CatchState, Tensor]:
        zeros = torch.zeros(self.num_envs, dtype=torch.long, device=self.device)
        paddle = torch.full_like(zeros, self.columns // 2) if s is None else s.paddle
        state = CatchState(zeros, self._new_balls(s, generator), paddle, s)
        return state, self._render(state)

    def step(
        self, state: CatchState, actions: Tensor, generator: torch.Generator
    ) -> tuple[CatchState, TimeStep]:
        s = state.settings
        if s is None:
            paddle = (state.paddle + actions - 1).clamp(0, self.columns - 1)
        else:
            shift = torch.where(s.mirrored, 1 - actions, actions - 1)
            paddle = torch.minimum((state.paddle + shift).clamp_(min=0), s.columns - 1)
        ball_row = state.ball_row + 1
        landed = ball_row == (self.rows if s is None else s.rows) - 1
        caught = paddle == state.ball_column
        if s is None:
            reward = landed * torch.where(caught, 1.0, -1.0)
        else:
            reward = landed * torch.where(caught, s.caught, s.missed)
        state = CatchState(
            ball_row=ball_row.masked_fill(landed, 0),
            ball_column=torch.where(landed, self._new_balls(s, generator), state.ball_column),
            paddle=paddle.masked_fill(landed, self.columns // 2)
            if s is None
            else torch.where(landed, s.paddle, paddle),
            settings=s,
        )
        return state, TimeStep(self._render(state), reward, (~landed).float())

    def _new_balls(self, settings: CatchSettings | None, generator: torch.Generator) -> Tensor:
        if settings is None:
            size = (self.num_envs,)
            return torch.randint(self.columns, size, generator=generator, device=self.device)
        drawn = self._chances(generator) * settings.columns
        return torch.where(settings.ball < 0, drawn.long(), settings.ball)

    def _render(self, state: CatchState) -> Tensor:
        """1 where the ball and the paddle are; they never meet, see ``step``. [B, rows, columns]"""
        ball = torch.add(state.ball_column, state.ball_row, alpha=self.columns)
        if state.settings is None:
            paddle_board = self._paddle_boards.index_select(0, state.paddle)
            return self._boards.index_select(0, ball) + paddle_board
        paddle = torch.add(state.paddle, state.settings.rows - 1, alpha=self.columns)
        return self._boards[ball] + self._boards[paddle]
