"""Crafter, whose package keeps an API of its own: ``reset()`` and a ``step`` of four values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from discorl.envs.suites import reading as opts
from discorl.envs.suites.copies import stack_frames, vectorise
from discorl.envs.suites.packages import is_installed, load
from discorl.envs.suites.suite_settings import CrafterSettings
from discorl.errors import DiscorlError

EXTRA = "crafter"
PACKAGE = "crafter"


@dataclass(frozen=True)
class CrafterOptions(CrafterSettings):
    """The settings, and what a run decides by settings of its own."""

    stack: int = 1
    """Frames in an observation, oldest first."""
    processes: bool = False
    """A process for each environment."""
    next_step: bool = False
    """Spend a step on resetting, after the one that ends an episode."""

    def __post_init__(self) -> None:
        super().__post_init__()
        opts.at_least(1, stack=self.stack)


class CrafterEnv(gymnasium.Env):
    """One world after another. Observations are uint8 [height, width, 3]."""

    def __init__(self, options: CrafterOptions) -> None:
        self._options = options
        self._env = self._build(None)
        size = options.image_size
        self.observation_space = gymnasium.spaces.Box(0, 255, (size, size, 3), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(self._env.action_names))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._env = self._build(seed)  # the constructor is the only way to seed
        return self._env.reset(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward, ended, info = self._env.step(int(action))
        dead = info["discount"] == 0
        done = {f"achievement_{name}": count for name, count in info["achievements"].items()}
        return observation, float(reward), bool(dead), bool(ended and not dead), done

    def _build(self, seed: int | None) -> Any:
        size, area = self._options.image_size, self._options.area
        return load(PACKAGE, EXTRA, "Crafter").Env(
            area=(area, area), size=(size, size), length=self._options.max_steps, seed=seed
        )


def installed() -> bool:
    """Whether the package that it needs is there."""
    return is_installed(PACKAGE)


def names() -> list[str]:
    """One task, without a name."""
    return [""]


def make(name: str, num_envs: int, options: Mapping[str, object]) -> VectorEnv:
    """Copies of Crafter."""
    load(PACKAGE, EXTRA, "Crafter")
    if name:
        raise DiscorlError(f"Crafter has no task '{name}': write crafter alone")
    chosen = opts.read(CrafterOptions, options, "Crafter")
    opts.at_least(1, num_envs=num_envs)
    envs = vectorise([partial(CrafterEnv, chosen)] * num_envs, chosen.processes, chosen.next_step)
    envs = stack_frames(envs, chosen.stack, channel_axis=2)
    envs.metadata = {**envs.metadata, "image_layout": "channels-last"}
    return envs
