"""Sokoban: push every box onto a target. Boxes can only be pushed, one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np

from discorl.envs.gymnasium.vector import Factory, Info, Shown
from discorl.envs.suites.sokoban_levels import MOVES, Level, read_levels
from discorl.envs.suites.suite_settings import SokobanSettings

LEVELS = Path(__file__).with_name("sokoban_levels.txt")
"""Generated, see ``tests/envs/suites/sokoban_generator.py``; Boxoban's own are a download."""

REWARD_STEP, REWARD_BOX, REWARD_SOLVED = -0.1, 1.0, 10.0


class Sokoban(gymnasium.Env):
    """Levels drawn at random. Actions: up, down, left, right.

    Rewards: -0.1 a step, +1 for a box pushed onto a target and -1 for one pushed off it, +10 when
    all are on targets. Observations are [4, height, width] images of 0 and 255: walls, targets,
    boxes, player.
    """

    def __init__(self, levels: Sequence[Level], max_steps: int) -> None:
        self._levels = levels
        self._max_steps = max_steps
        self._start(levels[0])
        shape = (4, *levels[0].walls.shape)
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(MOVES))

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> Shown:
        super().reset(seed=seed)
        self._start(self._levels[int(self.np_random.integers(len(self._levels)))])
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, Info]:
        before = self._placed()
        self._move(MOVES[int(action)])
        self._steps += 1
        solved = self._placed() == int(self._level.targets.sum())
        reward = REWARD_STEP + REWARD_BOX * (self._placed() - before) + REWARD_SOLVED * solved
        cut = not solved and self._steps >= self._max_steps
        return self._observe(), reward, solved, cut, {}

    def _start(self, level: Level) -> None:
        self._level, self._boxes, self._player = level, level.boxes.copy(), level.player
        self._steps = 0

    def _move(self, step: tuple[int, int]) -> None:
        walls, boxes = self._level.walls, self._boxes
        there = (self._player[0] + step[0], self._player[1] + step[1])
        if walls[there]:
            return
        if boxes[there]:
            beyond = (there[0] + step[0], there[1] + step[1])
            if walls[beyond] or boxes[beyond]:
                return
            boxes[there], boxes[beyond] = False, True
        self._player = there

    def _placed(self) -> int:
        return int((self._boxes & self._level.targets).sum())

    def _observe(self) -> np.ndarray:
        board = np.zeros((4, *self._boxes.shape), bool)
        board[0], board[1], board[2] = self._level.walls, self._level.targets, self._boxes
        board[3][self._player] = True
        return board.astype(np.uint8) * np.uint8(255)


def factory(name: str, settings: SokobanSettings) -> Factory:
    """What makes a copy, on the levels at the path ``name``, or on ours if that is ''."""
    levels = read_levels(Path(name).expanduser() if name else LEVELS)
    return partial(Sokoban, levels, settings.max_steps)
