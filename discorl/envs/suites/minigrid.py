"""MiniGrid's tasks: rooms with doors, keys and goals, seen through a small window."""

from __future__ import annotations

import os
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np

from discorl.envs.gymnasium.vector import Factory
from discorl.envs.suites.packages import choose
from discorl.envs.suites.suite_settings import MiniGridSettings


class OneHotGrid(gymnasium.ObservationWrapper):
    """The kind, colour and state of each cell as [width, height, C] one-hot images of 0 and 255.

    MiniGrid numbers them, which says nothing to a network that divides bytes by 255. In the full
    view, an agent's state is the way it faces. The mission's text is left out.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        constants = import_module("minigrid.core.constants")
        num_states = max(len(constants.STATE_TO_IDX), len(constants.DIR_TO_VEC))
        sizes = (len(constants.OBJECT_TO_IDX), len(constants.COLOR_TO_IDX), num_states)
        self._codes = [np.eye(n, dtype=np.uint8) * np.uint8(255) for n in sizes]
        shown: Any = env.observation_space
        shape = (*shown["image"].shape[:2], sum(sizes))
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)

    def observation(self, observation: Any) -> np.ndarray:
        image = observation["image"]
        return np.concatenate([code[image[..., i]] for i, code in enumerate(self._codes)], -1)


def names() -> list[str]:
    """Every task whose id is MiniGrid-NAME-v0; those of a later version keep their '-v1'."""
    _import()
    return [
        env_id.removeprefix("MiniGrid-").removesuffix("-v0")
        for env_id in gymnasium.registry
        if env_id.startswith("MiniGrid-")
    ]


def factory(name: str, settings: MiniGridSettings) -> Factory:
    """What makes a copy of the task called ``name``."""
    name = choose(name.removeprefix("MiniGrid-").removesuffix("-v0"), names(), "MiniGrid task")
    env_id = f"MiniGrid-{name}" if name.endswith("-v1") else f"MiniGrid-{name}-v0"
    return partial(_make_one, env_id, settings)


def _make_one(env_id: str, settings: MiniGridSettings) -> gymnasium.Env:
    _import()  # once more, for a process of its own
    limit = {"max_steps": settings.max_steps} if settings.max_steps else {}
    env = gymnasium.make(env_id, disable_env_checker=True, **limit)
    if settings.full_view:
        env = import_module("minigrid.wrappers").FullyObsWrapper(env)
    return OneHotGrid(env)


def _import() -> None:
    """Register the tasks, without pygame's greeting."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    import_module("minigrid")
