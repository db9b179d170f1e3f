"""The module of a user who has environments of their own."""

from __future__ import annotations

import gymnasium

from tests.envs.gym_examples import Corridor


class Long(Corridor):
    """A corridor of a length that is given as a keyword argument."""

    def __init__(self, length: int = 5, fails_at: int = 0) -> None:
        super().__init__(length, limit=20)
        self._fails_at = fails_at
        self._steps = 0

    def step(self, action):
        self._steps += 1
        if self._steps == self._fails_at:
            self._fail()
        return super().step(action)

    def _fail(self):
        raise ZeroDivisionError("the wheels came off")  # the line that errors name


def make(length: int = 5, fails_at: int = 0):
    return Long(length, fails_at)


def timed(env: gymnasium.Env):
    """Adds the time to observations."""
    return gymnasium.wrappers.TimeAwareObservation(gymnasium.wrappers.TimeLimit(env, 20))
