"""Environments with DeepMind's ``dm_env`` interface.

DMLab plugs in this way; its package cannot be installed with pip.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from discorl.envs.base import check_copies
from discorl.envs.gymnasium.vector import Factory, Info
from discorl.envs.named_code import NAME, load_function
from discorl.envs.suites.copies import vectorise
from discorl.errors import DiscorlError


class DmEnv(gymnasium.Env):
    """What ``build(seed)`` makes, as a Gymnasium environment.

    An episode whose last discount is 0 has terminated; any other was truncated. The interface
    knows no seeds, so ``reset(seed=...)`` rebuilds it. Discounts between 0 and 1 are not passed on.
    """

    def __init__(self, build: Callable[[int | None], Any]) -> None:
        specs = import_module("dm_env.specs")
        self._build = build
        self._env = build(None)
        self.observation_space = _space(self._env.observation_spec(), specs)
        self.action_space = _space(self._env.action_spec(), specs)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        if seed is not None:
            self._env.close()
            self._env = self._build(seed)
        return _plain(self._env.reset().observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        now = self._env.step(action)
        if now.first():
            raise DiscorlError("the dm_env environment began an episode before the last one ended")
        reward = 0.0 if now.reward is None else float(now.reward)
        dead = now.last() and now.discount == 0
        return _plain(now.observation), reward, bool(dead), bool(now.last() and not dead), {}

    def close(self) -> None:
        self._env.close()


def factory(name: str, settings: None = None) -> Factory:
    """What makes a copy of what ``MODULE:FUNCTION`` makes when called with a seed, or None."""
    if not NAME.fullmatch(name):
        raise DiscorlError(
            f"write dm_env:MODULE:FUNCTION, where FUNCTION(seed) makes the environment, not "
            f"'dm_env:{name}'"
        )
    return partial(DmEnv, load_function(name))


def from_dm_env(
    build: Callable[[int | None], Any] | Sequence[Callable[[int | None], Any]],
    num_envs: int = 1,
    processes: bool = False,
    next_step: bool = False,
) -> VectorEnv:
    """``num_envs`` copies of what ``build(seed)`` makes; or one per builder of a sequence."""
    check_copies(num_envs)
    builders = [build] * num_envs if callable(build) else list(build)
    return vectorise([partial(DmEnv, each) for each in builders], processes, next_step)


def _space(spec: Any, specs: Any) -> gymnasium.Space:
    """The Gymnasium space of a spec, or of a mapping or sequence of specs."""
    if isinstance(spec, dict):
        return gymnasium.spaces.Dict({key: _space(value, specs) for key, value in spec.items()})
    if isinstance(spec, list | tuple):
        return gymnasium.spaces.Tuple([_space(value, specs) for value in spec])
    if isinstance(spec, specs.DiscreteArray):
        return gymnasium.spaces.Discrete(spec.num_values)
    if not isinstance(spec, specs.Array) or spec.dtype.kind not in "biuf":
        raise DiscorlError(f"dm_env's {spec!r} is not an array of numbers: drop it with a wrapper")
    if isinstance(spec, specs.BoundedArray):
        low = np.broadcast_to(spec.minimum, spec.shape).astype(spec.dtype)
        high = np.broadcast_to(spec.maximum, spec.shape).astype(spec.dtype)
    elif spec.dtype.kind == "f":
        low, high = -np.inf, np.inf
    elif spec.dtype.kind == "b":
        low, high = 0, 1
    else:
        low, high = np.iinfo(spec.dtype).min, np.iinfo(spec.dtype).max
    return gymnasium.spaces.Box(low, high, spec.shape, spec.dtype.type)  # type: ignore[arg-type]


def _plain(observation: Any) -> Any:
    """Copies, as dicts, tuples and arrays: environments may write into theirs again."""
    if isinstance(observation, dict):
        return {key: _plain(value) for key, value in observation.items()}
    if isinstance(observation, list | tuple):
        return tuple(_plain(value) for value in observation)
    return np.array(observation)
