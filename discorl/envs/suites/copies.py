"""Vectors of environments, and stacks of frames over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

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
        space = envs.single_observation_space
        self._is_dict = isinstance(space, gymnasium.spaces.Dict)
        parts: dict[str, Any] = dict(space.spaces) if self._is_dict else {"": space}  # type: ignore
        self._stacks = {
            key: _Stack(part, self.num_envs, num_frames, channel_axis)
            for key, part in parts.items()
        }
        shown: Any = {key: stack.space for key, stack in self._stacks.items()}
        self.single_observation_space = gymnasium.spaces.Dict(shown) if self._is_dict else shown[""]
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self._mode = envs.metadata["autoreset_mode"]
        self._ended = np.zeros(self.num_envs, bool)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        frames, infos = self.env.reset(seed=seed, options=options)
        self._clear(np.ones(self.num_envs, bool))
        self._ended[:] = False
        self._push(frames)
        return self._show(), infos

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Info]:
        frames, rewards, terminated, truncated, infos = self.env.step(actions)
        ended = terminated | truncated
        if self._mode == AutoresetMode.NEXT_STEP:
            self._clear(self._ended)
        elif ended.any():
            infos = {**infos, "final_obs": self._final(infos["final_obs"], ended)}
            self._clear(ended)
        self._push(frames)
        self._ended = ended
        return self._show(), rewards, terminated, truncated, infos

    def _push(self, frames: Any) -> None:
        for key, stack in self._stacks.items():
            stack.push(frames[key] if self._is_dict else frames)

    def _clear(self, rows: np.ndarray) -> None:
        for stack in self._stacks.values():
            stack.frames[rows] = 0

    def _show(self) -> Any:
        shown = {key: stack.frames.copy() for key, stack in self._stacks.items()}
        return shown if self._is_dict else shown[""]

    def _final(self, last: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """Stacks that end in the last frames of the ended episodes, None elsewhere."""
        found = np.full(self.num_envs, None, dtype=object)
        for i in np.flatnonzero(ended).tolist():
            shown = {
                key: stack.with_newest(i, last[i][key] if self._is_dict else last[i])
                for key, stack in self._stacks.items()
            }
            found[i] = shown if self._is_dict else shown[""]
        return found


class _Stack:
    """The last frames of one array of an observation, in each environment."""

    def __init__(self, space: Any, num_envs: int, num_frames: int, channel_axis: int) -> None:
        assert isinstance(space, gymnasium.spaces.Box)
        low, high = space.low, space.high
        if low.ndim == 2:
            low, high, channel_axis = low[None], high[None], 0
        self._axis = channel_axis if low.ndim > 1 else 0
        self._shape = low.shape
        self._channels = low.shape[self._axis]
        self.space = gymnasium.spaces.Box(
            np.concatenate([low] * num_frames, self._axis),
            np.concatenate([high] * num_frames, self._axis),
            dtype=space.dtype.type,  # type: ignore[union-attr]
        )
        self.frames = np.zeros((num_envs, *self.space.shape), space.dtype)  # [B, ...]

    def push(self, newest: np.ndarray) -> None:
        """Take a frame [B, ...] in for the oldest."""
        self._shift(self.frames, newest.reshape(-1, *self._shape))

    def with_newest(self, row: int, newest: np.ndarray) -> np.ndarray:
        """What environment ``row`` would show after a frame [...]."""
        frames = self.frames[row : row + 1].copy()
        self._shift(frames, np.asarray(newest).reshape(1, *self._shape))
        return frames[0]

    def _shift(self, frames: np.ndarray, newest: np.ndarray) -> None:
        old = np.moveaxis(frames, self._axis + 1, 1)
        old[:, : -self._channels] = old[:, self._channels :].copy()
        old[:, -self._channels :] = np.moveaxis(newest, self._axis + 1, 1)
