"""dm_env environments that tests name on the command line: ``dm_env:MODULE:FUNCTION``."""

from __future__ import annotations

from typing import Any

import numpy as np


def make(seed: int | None) -> Any:
    """Catch on a board of bytes, written against the interface of dm_env itself."""
    import dm_env  # type: ignore[import-not-found]
    from dm_env import specs  # type: ignore[import-not-found]

    class Catch(dm_env.Environment):
        def __init__(self) -> None:
            self._random = np.random.default_rng(seed)

        def reset(self) -> Any:
            self._ball, self._paddle = [0, int(self._random.integers(5))], 2
            return dm_env.restart(self._show())

        def step(self, action: Any) -> Any:
            self._paddle = int(np.clip(self._paddle + action - 1, 0, 4))
            self._ball[0] += 1
            if self._ball[0] < 5:
                return dm_env.transition(0.0, self._show())
            reward = 1.0 if self._ball[1] == self._paddle else -1.0
            return dm_env.termination(reward, self._show())

        def _show(self) -> Any:
            board = np.zeros((6, 5, 1), np.uint8)
            board[self._ball[0], self._ball[1]] = board[5, self._paddle] = 255
            return board

        def observation_spec(self) -> Any:
            return specs.BoundedArray((6, 5, 1), np.uint8, 0, 255, name="board")

        def action_spec(self) -> Any:
            return specs.DiscreteArray(3)

    return Catch()


def make_bsuite(seed: int | None) -> Any:
    """An environment that others wrote; bsuite fixes its seeds itself."""
    import bsuite  # type: ignore[import-not-found]

    return bsuite.load_from_id("deep_sea/0")
