"""Vectors of environments, and stacks of frames over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space


def vectorise(makers: Sequence[Callable[[], gymnasium.Env]], processes: bool) -> VectorEnv:
    """One environment per maker, reset in the step that ends an episode."""
    kind = AsyncVectorEnv if processes else SyncVectorEnv
    return kind(makers, autoreset_mode=AutoresetMode.SAME_STEP)


def stack_frames(envs: VectorEnv, num_frames: int, channel_axis: int) -> VectorEnv:
    """Show the last ``num_frames`` images one after the other along the channels."""
    return envs if num_frames == 1 else StackFrames(envs, num_frames, channel_axis)


class StackFrames(VectorWrapper):
    """The newest frame comes last; before an episode's first there is black.

    ``channel_axis`` is that of a single image: 0 or 2.
    """

    def __init__(self, envs: VectorEnv, num_frames: int, channel_axis: int) -> None:
        super().__init__(envs)
        space = envs.single_observation_space
        assert isinstance(space, gymnasium.spaces.Box)
        self._axis = channel_axis
        self._shape = space.shape
        self._channels = space.shape[channel_axis]
        self._mode = envs.metadata["autoreset_mode"]
        self.single_observation_space = gymnasium.spaces.Box(
            np.concatenate([space.low] * num_frames, channel_axis),
            np.concatenate([space.high] * num_frames, channel_axis),
            dtype=space.dtype.type,  # type: ignore[union-attr]
        )
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self._stack = np.zeros(self.observation_space.shape or (), space.dtype)
        self._ended = np.zeros(self.num_envs, bool)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        frames, infos = self.env.reset(seed=seed, options=options)
        self._stack = np.zeros_like(self._stack)
        self._ended[:] = False
        self._push(frames)
        return self._stack.copy(), infos

    def step(
        self, actions: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        frames, rewards, terminated, truncated, infos = self.env.step(actions)
        ended = terminated | truncated
        if self._mode == AutoresetMode.NEXT_STEP:
            self._stack[self._ended] = 0
        elif ended.any():
            infos = {**infos, "final_obs": self._final(infos["final_obs"], ended)}
            self._stack[ended] = 0
        self._push(frames)
        self._ended = ended
        return self._stack.copy(), rewards, terminated, truncated, infos

    def _push(self, frames: np.ndarray) -> None:
        old = np.moveaxis(self._stack, self._axis + 1, 1)
        new = np.moveaxis(frames, self._axis + 1, 1)
        old[:, : -self._channels] = old[:, self._channels :].copy()
        old[:, -self._channels :] = new

    def _final(self, frames: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """Stacks that end in the last frames of the ended episodes, None elsewhere."""
        kept = self._stack.copy()
        last = np.zeros((self.num_envs, *self._shape), kept.dtype)
        for i in np.flatnonzero(ended):
            last[i] = frames[i]
        self._push(last)
        found = np.full(self.num_envs, None, dtype=object)
        for i in np.flatnonzero(ended):
            found[i] = self._stack[i].copy()
        self._stack = kept
        return found
