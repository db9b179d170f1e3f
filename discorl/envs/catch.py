"""Catch: a ball falls down a board; the paddle at the bottom should be under it when it lands."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from discorl.errors import DiscorlError
from discorl.types import EnvSpec, TimeStep


class CatchState(NamedTuple):
    """Positions, each [B]."""

    ball_row: Tensor
    ball_column: Tensor
    paddle: Tensor


class Catch:
    """Actions: left, stay, right. Reward when the ball lands: +1 if caught, -1 if not."""

    def __init__(
        self,
        num_envs: int,
        rows: int = 8,
        columns: int = 8,
        device: torch.device | str = "cpu",
    ) -> None:
        if rows < 2 or columns < 1:
            raise DiscorlError(
                f"a Catch board needs 2 rows and 1 column or more, not {rows}x{columns}"
            )
        if num_envs < 1:
            raise DiscorlError(f"num_envs must be at least 1, not {num_envs}")
        self.num_envs = num_envs
        self.rows = rows
        self.columns = columns
        self.device = torch.device(device)
        # A board for each place of the ball and of the paddle; they never meet, see ``step``.
        boards = torch.eye(rows * columns, device=self.device).unflatten(1, (rows, columns))
        self._ball_boards, self._paddle_boards = boards, boards[-columns:]
        self.spec = EnvSpec(
            observation_shape=(rows, columns),
            num_actions=3,
            success_return=1.0,
            success_name="catch rate",
        )

    def reset(self, generator: torch.Generator) -> tuple[CatchState, TimeStep]:
        zeros = torch.zeros(self.num_envs, device=self.device)
        state = CatchState(
            ball_row=zeros.long(),
            ball_column=self._random_columns(generator),
            paddle=torch.full_like(zeros, self.columns // 2, dtype=torch.long),
        )
        return state, TimeStep(self._render(state), zeros, torch.ones_like(zeros))

    def step(
        self, state: CatchState, actions: Tensor, generator: torch.Generator
    ) -> tuple[CatchState, TimeStep]:
        paddle = (state.paddle + actions - 1).clamp(0, self.columns - 1)
        ball_row = state.ball_row + 1
        landed = ball_row == self.rows - 1
        caught = paddle == state.ball_column
        reward = landed * (2.0 * caught - 1.0)
        state = CatchState(
            ball_row=torch.where(landed, 0, ball_row),
            ball_column=torch.where(landed, self._random_columns(generator), state.ball_column),
            paddle=torch.where(landed, self.columns // 2, paddle),
        )
        return state, TimeStep(self._render(state), reward, 1.0 - landed.float())

    def _random_columns(self, generator: torch.Generator) -> Tensor:
        size = (self.num_envs,)
        return torch.randint(self.columns, size, generator=generator, device=self.device)

    def _render(self, state: CatchState) -> Tensor:
        """1 where the ball and the paddle are. [B, rows, columns]"""
        ball = torch.add(state.ball_column, state.ball_row, alpha=self.columns)
        return self._ball_boards[ball] + self._paddle_boards[state.paddle]
