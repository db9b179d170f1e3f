"""Vectors of environments, and stacks of frames over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space, create_empty_array

from discorl.envs.gymnasium.interface import FrameStack
from discorl.envs.gymnasium.vector import Info, make_vector


def vectorise(
    makers: Sequence[Callable[[], gymnasium.Env]], processes: bool, next_step: bool = False
) -> VectorEnv:
    """One environment per maker, reset in the step that ends an episode, or in the next."""
    mode = AutoresetMode.NEXT_STEP if next_step else AutoresetMode.SAME_STEP
    return make_vector(makers, "async" if processes else "sync", mode, copy=True)


def stack_frames(envs: VectorEnv, num_frames: int, channel_axis: int = 0) -> VectorEnv:
    """Show the last ``num_frames`` images one after the other along the channels.

    Where observations are a Dict, each of its arrays is stacked along its first axis.
    """
    return envs if num_frames == 1 else StackFrames(envs, num_frames, channel_axis)


class StackFrames(VectorWrapper):
    """The newest frame comes last; before an episode's first there is black.

    ``channel_axis`` is that of a single image, 0 or 2; images without channels get an axis for
    them.
    """

    def __init__(self, envs: VectorEnv, num_frames: int, channel_axis: int = 0) -> None:
        super().__init__(envs)
        self._channel_axis = channel_axis
        space: Any = envs.single_observation_space
        self.frame_stack = FrameStack(space, num_frames, channel_axis)
        spaces = dict(space.spaces) if isinstance(space, Dict) else space
        shown = _map(lambda part: self._stacked(part, num_frames), spaces)
        self.single_observation_space = Dict(shown) if isinstance(space, Dict) else shown
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self._frames: Any = create_empty_array(self.single_observation_space, self.num_envs)
        self._mode = envs.metadata["autoreset_mode"]
        self._ended = np.zeros(self.num_envs, bool)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        frames, infos = self.env.reset(seed=seed, options=options)
        self._clear(np.ones(self.num_envs, bool))
        self._ended[:] = False
        return self._push(frames), infos

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Info]:
        frames, rewards, terminated, truncated, infos = self.env.step(actions)
        ended = terminated | truncated
        if self._mode == AutoresetMode.NEXT_STEP:
            self._clear(self._ended)
        elif ended.any():
            infos = {**infos, "final_obs": self._final(infos["final_obs"], ended)}
            self._clear(ended)
        self._ended = ended
        return self._push(frames), rewards, terminated, truncated, infos

    def _clear(self, rows: np.ndarray) -> None:
        def clear(frames: np.ndarray) -> np.ndarray:
            frames = frames.copy()  # what was shown stays as it was
            frames[rows] = 0
            return frames

        self._frames = _map(clear, self._frames)

    def _push(self, frames: Any) -> Any:
        self._frames = _map(self._shift, self._frames, frames)
        return self._frames

    def _final(self, last: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """Stacks that end in the last frames of the ended episodes, None elsewhere."""
        found = np.full(self.num_envs, None, dtype=object)
        shift = partial(self._shift, batch_axes=0)
        for i in np.flatnonzero(ended).tolist():
            found[i] = _map(shift, _map(itemgetter(i), self._frames), last[i])
        return found

    def _shift(self, frames: np.ndarray, newest: np.ndarray, batch_axes: int = 1) -> np.ndarray:
        """``frames`` [B, ...] with the newest [B, ...] in for the oldest."""
        newest, axis = self._with_channels(np.asarray(newest), batch_axes)
        younger = np.delete(frames, np.s_[: newest.shape[axis]], axis)
        return np.concatenate([younger, newest], axis)

    def _stacked(self, space: Any, num_frames: int) -> Box:
        bounds = [self._with_channels(x, 0) for x in (space.low, space.high)]
        low, high = (np.concatenate([x] * num_frames, axis) for x, axis in bounds)
        return Box(low, high, dtype=space.dtype.type)

    def _with_channels(self, x: np.ndarray, batch_axes: int) -> tuple[np.ndarray, int]:
        """An array that has an axis to stack along, and which it is."""
        num_axes = x.ndim - batch_axes
        if num_axes == 2:
            x = np.expand_dims(x, batch_axes)
        return x, batch_axes + (self._channel_axis if num_axes > 2 else 0)


def _map(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """Apply to an array, or to each of a dict, and to those of the others that belong to it."""
    if isinstance(first, dict):
        return {key: function(x, *(other[key] for other in others)) for key, x in first.items()}
    return function(first, *others)
