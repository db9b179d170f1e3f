"""MiniGrid's tasks: rooms with doors, keys and goals, seen through a small window."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from discorl.envs.suites import reading as opts
from discorl.envs.suites.copies import vectorise
from discorl.envs.suites.packages import choose, is_installed, load
from discorl.envs.suites.suite_settings import MiniGridSettings

EXTRA = "minigrid"
PACKAGE = "minigrid"


@dataclass(frozen=True)
class MiniGridOptions(MiniGridSettings):
    """The settings, and what a run decides by settings of its own."""

    processes: bool = False
    """A process for each environment."""
    next_step: bool = False
    """Spend a step on resetting, after the one that ends an episode."""


class OneHotGrid(gymnasium.ObservationWrapper):
    """The kind, colour and state of each cell as [width, height, C] one-hot images of 0 and 255.

    MiniGrid numbers them, which says nothing to a network that divides bytes by 255. In the full
    view, an agent's state is the way it faces. The mission's text is left out.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        constants = load("minigrid.core.constants", EXTRA, "MiniGrid")
        num_states = max(len(constants.STATE_TO_IDX), len(constants.DIR_TO_VEC))
        sizes = (len(constants.OBJECT_TO_IDX), len(constants.COLOR_TO_IDX), num_states)
        self._codes = [np.eye(n, dtype=np.uint8) * np.uint8(255) for n in sizes]
        shown: Any = env.observation_space
        shape = (*shown["image"].shape[:2], sum(sizes))
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)

    def observation(self, observation: Any) -> np.ndarray:
        image = observation["image"]
        return np.concatenate([code[image[..., i]] for i, code in enumerate(self._codes)], -1)


def installed() -> bool:
    """Whether the package that it needs is there."""
    return is_installed(PACKAGE)


def names() -> list[str]:
    """Every task whose id is MiniGrid-NAME-v0; those of a later version keep their '-v1'."""
    _import()
    return [
        env_id.removeprefix("MiniGrid-").removesuffix("-v0")
        for env_id in gymnasium.registry
        if env_id.startswith("MiniGrid-")
    ]


def make(name: str, num_envs: int, options: Mapping[str, object]) -> VectorEnv:
    """Copies of the task called ``name``."""
    _import()
    chosen = opts.read(MiniGridOptions, options, "MiniGrid")
    opts.at_least(1, num_envs=num_envs)
    name = choose(name.removeprefix("MiniGrid-").removesuffix("-v0"), names(), "MiniGrid task")
    env_id = f"MiniGrid-{name}" if name.endswith("-v1") else f"MiniGrid-{name}-v0"
    maker = partial(_make_one, env_id, chosen)
    envs = vectorise([maker] * num_envs, chosen.processes, chosen.next_step)
    envs.metadata = {**envs.metadata, "image_layout": "channels-last"}
    return envs


def _make_one(env_id: str, options: MiniGridOptions) -> gymnasium.Env:
    _import()  # once more, for a process of its own
    limit = {"max_steps": options.max_steps} if options.max_steps else {}
    env = gymnasium.make(env_id, disable_env_checker=True, **limit)
    if options.full_view:
        env = load("minigrid.wrappers", EXTRA, "MiniGrid").FullyObsWrapper(env)
    return OneHotGrid(env)


def _import() -> None:
    """Register the tasks, without pygame's greeting."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    load(PACKAGE, EXTRA, "MiniGrid")
