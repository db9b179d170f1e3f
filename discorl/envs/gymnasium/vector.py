"""Vector environments from factories, whose failures name the environment that failed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from discorl.envs.failures import one_line
from discorl.envs.gymnasium.exits import PASS, call_without_exit
from discorl.envs.gymnasium.masks import KEY, METHOD, has_method
from discorl.envs.gymnasium.recorded import Recorded
from discorl.envs.gymnasium.spaces import observation_leaves
from discorl.envs.gymnasium.workers import ReportingAsyncVectorEnv
from discorl.errors import DiscorlError, EnvFailure

Factory = Callable[[], gymnasium.Env]
Info = dict[str, Any]
"""What an environment tells besides an observation, and what a reset may be told."""
Shown = tuple[np.ndarray, Info]
"""What a reset returns."""


def make_vector(
    factories: Sequence[Factory],
    workers: Literal["sync", "async"] = "sync",
    autoreset: AutoresetMode = AutoresetMode.SAME_STEP,
    *,
    copy: bool = False,
    recorded: bool = False,
) -> VectorEnv:
    """One vector environment of one copy from each factory.

    Without ``copy`` a step is shown in the same arrays as the one before, which is right where
    observations become tensors at once. ``recorded`` ones can play their episodes again.
    """
    if not factories:
        raise DiscorlError("num_envs must be at least 1, not 0")
    guarded = [partial(_Guard.around, factory, i, recorded) for i, factory in enumerate(factories)]
    try:
        kind: type[VectorEnv] = SyncVectorEnv if workers == "sync" else ReportingAsyncVectorEnv
        return call_without_exit(kind, guarded, copy=copy, autoreset_mode=autoreset)
    except PASS:
        raise
    except BaseException as e:
        raise DiscorlError(f"cannot run {len(factories)} copies together: {one_line(e)}") from e


def make_guarded(factory: Factory, who: str) -> gymnasium.Env:
    """What the factory makes, if it is an environment; ``who`` is its name in errors."""
    try:
        env = factory()
    except PASS:
        raise
    except BaseException as e:
        raise DiscorlError(f"{who} could not be made: {one_line(e)}") from e
    if not isinstance(env, gymnasium.Env):
        made = type(env).__name__
        raise DiscorlError(f"the factory of {who} made a {made}, not a gymnasium.Env")
    for kind in ("action", "observation"):
        if not isinstance(getattr(env, f"{kind}_space", None), gymnasium.Space):
            raise DiscorlError(f"{who} has no {kind} space: set its {kind}_space")
    return env


class _Naming:
    """A failure in here names the environment and what it was to do. Made once, used often: a step
    of a small game takes no longer than ``contextlib.contextmanager`` does."""

    def __init__(self, who: str, what: str) -> None:
        self._failed = f"{who} failed to {what}"

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and not isinstance(error, PASS):
            raise EnvFailure(f"{self._failed}: {one_line(error)}") from error


class _Guard(gymnasium.Wrapper):
    """Checks what one environment of many says, and says which one it was."""

    def __init__(self, env: gymnasium.Env, index: int) -> None:
        super().__init__(env)
        self._who = f"environment {index}"
        self._reset, self._step = (_Naming(self._who, what) for what in ("reset", "step"))
        self._leaves = [
            (leaf, _Naming(self._who, f"show observation '{leaf.name}'"))
            for leaf in observation_leaves(env.observation_space, self._who, "auto")
        ]
        self._masks = env.get_wrapper_attr(METHOD) if has_method(env) else None

    @classmethod
    def around(cls, factory: Factory, index: int, recorded: bool) -> gymnasium.Env:
        """Make an environment and guard it."""
        env = make_guarded(factory, f"environment {index}")
        return cls(Recorded(env, index) if recorded else env, index)

    def close(self) -> None:
        with _Naming(self._who, "close"):
            super().close()

    def reset(self, **kwargs: Any) -> Any:
        with self._reset:
            observation, info = self.env.reset(**kwargs)
        self._check(observation)
        return observation, self._with_mask(info)

    def step(self, action: Any) -> Any:
        with self._step:
            observation, reward, terminated, truncated, info = self.env.step(action)
        self._check(observation)
        if not math.isfinite(float(reward)):
            raise EnvFailure(
                f"{self._who} sent a reward that is NaN or infinite ({reward}): fix the "
                "environment, or wrap it with gymnasium.wrappers.TransformReward"
            )
        if terminated or truncated:  # a reset may write over it before it is shown
            observation = deepcopy(observation)
        return observation, reward, terminated, truncated, self._with_mask(info)

    def _with_mask(self, info: Info) -> Info:
        """With the mask of an environment that has a method for it."""
        if self._masks is None:
            return info
        with _Naming(self._who, f"say its {METHOD}"):
            return info | {KEY: np.asarray(self._masks())}

    def _check(self, observation: Any) -> None:
        for leaf, naming in self._leaves:
            with naming:
                leaf.check(leaf.find(observation).shape, self._who)


def close_vector(envs: VectorEnv) -> None:
    """Close, even where workers are dead or in the middle of a step."""
    inner = envs.unwrapped
    if isinstance(inner, AsyncVectorEnv):
        inner._state = AsyncState.DEFAULT  # there is nothing that is worth waiting for
        envs.close(terminate=True)
    else:
        envs.close()
