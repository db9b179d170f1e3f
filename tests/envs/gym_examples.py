"""Small Gymnasium environments for tests."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Corridor(gymnasium.Env):
    """Deterministic: action 1 goes on, action 0 stays; ``length`` steps on there is the end.

    The reward is the new position plus a tenth of the action. After ``limit`` steps, if any, the
    episode is cut off.
    """

    def __init__(self, length: int = 3, limit: int | None = None) -> None:
        self.observation_space = spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._length, self._limit = length, limit
        self._place = self._time = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        self._place = self._time = 0
        return self._show(), {}

    def step(self, action: Any) -> Any:
        self._place += int(action)
        self._time += 1
        reward = self._place + 0.1 * int(action)
        cut_off = self._limit is not None and self._time >= self._limit
        return self._show(), reward, self._place >= self._length, cut_off, {}

    def _show(self) -> np.ndarray:
        return np.array([self._place, self._time, 1], np.float32) / 10


class OneArray(Corridor):
    """A corridor that shows everything in the same array, also inside a Dict."""

    def __init__(self, in_dict: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._array = np.zeros(3, np.float32)
        self._in_dict = in_dict
        if in_dict:
            self.observation_space = spaces.Dict({"seen": self.observation_space})

    def _show(self) -> Any:
        self._array[:] = super()._show()
        return {"seen": self._array} if self._in_dict else self._array


class Sampler(gymnasium.Env):
    """Shows samples of any space and takes the actions of any; episodes last ``length`` steps."""

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space | None = None,
        length: int = 4,
    ) -> None:
        self.observation_space = observation_space
        self.action_space = spaces.Discrete(2) if action_space is None else action_space
        self._length = length
        self._time = 0
        self.taken: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._time = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.taken.append(action)
        self._time += 1
        ended = self._time == self._length
        return self.observation_space.sample(), 1.0, False, ended, {}


class Faulty(Corridor):
    """A corridor without end that breaks at its ``at``-th step."""

    def __init__(self, fault: str | None, at: int = 5) -> None:
        super().__init__(length=10**9)
        self._fault, self._at = fault, at

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        if self._time == self._at:
            if self._fault == "raise":
                raise ZeroDivisionError("the wheels\ncame off")
            if self._fault == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if self._fault == "exit":
                sys.exit("enough")
            if self._fault == "os._exit":
                os._exit(3)
            if self._fault == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if self._fault == "shape":
                observation = observation[:2]
            if self._fault == "nan":
                reward = float("nan")
        return observation, reward, *rest


class Spiky(Corridor):
    """A corridor that says something extreme when the number of its steps is in ``spikes``.

    Environments that share ``spikes`` also share the count, and say it once.
    """

    def __init__(self, spikes: dict[int, float], what: str = "reward", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._spikes, self._what = spikes, what

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        later = {n - 1: x for n, x in self._spikes.items()}
        extreme = later.pop(0, None)
        self._spikes.clear()
        self._spikes.update(later)
        if extreme is not None and self._what == "reward":
            reward = extreme
        elif extreme is not None:
            observation[1] = extreme
        return observation, reward, *rest
