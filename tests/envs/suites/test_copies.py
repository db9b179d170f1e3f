from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from discorl.envs.gymnasium.vector import close_vector
from discorl.envs.suites.copies import StackFrames, stack_frames, vectorise
from discorl.errors import EnvFailure


class Counter(gymnasium.Env):
    """Shows 1, 2, 3, ... in both channels; terminated at 3, or at 4 where it starts at 2."""

    def __init__(self, first: int, channel_axis: int) -> None:
        self._first, self._axis = first, channel_axis
        self._now = first
        shape = (2, 1, 1) if channel_axis == 0 else (1, 1, 2)
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._now = self._first
        return self._show(), {}

    def step(self, action: Any) -> Any:
        self._now += 1
        return self._show(), 0.0, self._now == self._first + 2, False, {}

    def _show(self) -> np.ndarray:
        return np.full(self.observation_space.shape or (), self._now, np.uint8)


def stacked(mode: AutoresetMode, channel_axis: int) -> StackFrames:
    makers = [lambda: Counter(1, channel_axis), lambda: Counter(2, channel_axis)]
    return StackFrames(SyncVectorEnv(makers, autoreset_mode=mode), 3, channel_axis)


def one_channel(stack: np.ndarray) -> list[int]:
    """Every second value: both channels show the same."""
    values = stack.ravel().tolist()
    assert values[::2] == values[1::2]
    return values[::2]


@pytest.mark.parametrize("channel_axis", [0, 2])
def test_stack_when_reset_in_the_same_step(channel_axis: int) -> None:
    envs = stacked(AutoresetMode.SAME_STEP, channel_axis)
    assert envs.single_observation_space.shape == ((6, 1, 1) if channel_axis == 0 else (1, 1, 6))
    shown, _ = envs.reset(seed=0)
    assert [one_channel(x) for x in shown] == [[0, 0, 1], [0, 0, 2]]
    shown, *_ = envs.step(np.zeros(2, int))
    assert [one_channel(x) for x in shown] == [[0, 1, 2], [0, 2, 3]]
    shown, _, terminated, _, info = envs.step(np.zeros(2, int))
    assert terminated.all()
    assert [one_channel(x) for x in shown] == [[0, 0, 1], [0, 0, 2]]
    assert [one_channel(x) for x in info["final_obs"]] == [[1, 2, 3], [2, 3, 4]]
    shown, *_, info = envs.step(np.zeros(2, int))
    assert [one_channel(x) for x in shown] == [[0, 1, 2], [0, 2, 3]]
    assert "final_obs" not in info
    assert envs.observation_space.contains(shown)


def test_stack_when_reset_in_the_next_step() -> None:
    envs = stacked(AutoresetMode.NEXT_STEP, 0)
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    shown, _, terminated, *_ = envs.step(np.zeros(2, int))
    assert terminated.all()
    assert [one_channel(x) for x in shown] == [[1, 2, 3], [2, 3, 4]]
    shown, *_ = envs.step(np.zeros(2, int))
    assert [one_channel(x) for x in shown] == [[0, 0, 1], [0, 0, 2]]


class Screen(Counter):
    """The counter as a Dict: a board without channels, and a vector."""

    def __init__(self, first: int) -> None:
        super().__init__(first, 0)
        board = gymnasium.spaces.Box(0, 99, (2, 3), np.int16)
        numbers = gymnasium.spaces.Box(-9, 9, (2,), np.float32)
        self.observation_space = gymnasium.spaces.Dict(board=board, numbers=numbers)

    def _show(self) -> Any:
        board = np.full((2, 3), self._now, np.int16)
        return {"board": board, "numbers": np.array([self._now, -self._now], np.float32)}


def test_each_array_of_a_dict_is_stacked() -> None:
    makers = [lambda: Screen(1), lambda: Screen(2)]
    inner = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    envs = stack_frames(inner, 3)
    space: Any = envs.single_observation_space
    assert (space["board"].shape, space["numbers"].shape) == ((3, 2, 3), (6,))
    assert space["board"].dtype == np.int16
    envs.reset(seed=0)
    shown, *_ = envs.step(np.zeros(2, int))
    assert envs.observation_space.contains(shown)
    assert shown["board"][:, :, 0, 0].tolist() == [[0, 1, 2], [0, 2, 3]]
    assert shown["numbers"].tolist() == [[0, 0, 1, -1, 2, -2], [0, 0, 2, -2, 3, -3]]
    shown, _, terminated, _, info = envs.step(np.zeros(2, int))
    assert terminated.all()
    assert shown["board"][:, :, 0, 0].tolist() == [[0, 0, 1], [0, 0, 2]]
    last = info["final_obs"]
    assert [x["board"][:, 0, 0].tolist() for x in last] == [[1, 2, 3], [2, 3, 4]]
    assert last[0]["numbers"].tolist() == [1, -1, 2, -2, 3, -3]


def test_a_reset_forgets() -> None:
    envs = stacked(AutoresetMode.SAME_STEP, 0)
    envs.reset(seed=0)
    before, *_ = envs.step(np.zeros(2, int))
    kept = before.copy()
    shown, _ = envs.reset(seed=0)
    assert [one_channel(x) for x in shown] == [[0, 0, 1], [0, 0, 2]]
    assert np.array_equal(before, kept), "what was shown stays as it was"


class Broken(Counter):
    def step(self, action: Any) -> Any:
        raise ZeroDivisionError("the wheels came off")


@pytest.mark.parametrize("processes", [False, True])
def test_a_failure_names_the_copy(processes: bool) -> None:
    envs = vectorise([lambda: Counter(1, 0), lambda: Broken(1, 0)], processes)
    envs.reset(seed=0)
    with pytest.raises(EnvFailure, match="environment 1 failed to step: ZeroDivisionError"):
        envs.step(np.zeros(2, int))
    close_vector(envs)


def test_one_frame_is_no_stack() -> None:
    envs = vectorise([lambda: Counter(1, 0)], processes=False)
    assert stack_frames(envs, 1, 0) is envs
    assert envs.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
