"""Crafter, whose package keeps an API of its own: ``reset()`` and a ``step`` of four values."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np

from discorl.envs.gymnasium.vector import Factory, Info, Shown
from discorl.envs.suites.suite_settings import CrafterSettings
from discorl.errors import DiscorlError


class CrafterEnv(gymnasium.Env):
    """One world after another. Observations are uint8 [height, width, 3]."""

    def __init__(self, settings: CrafterSettings) -> None:
        self._settings = settings
        self._env = self._build(None)
        size = settings.image_size
        self.observation_space = gymnasium.spaces.Box(0, 255, (size, size, 3), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(self._env.action_names))

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> Shown:
        super().reset(seed=seed)
        if seed is not None:
            self._env = self._build(seed)  # the constructor is the only way to seed
        return self._env.reset(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, Info]:
        observation, reward, ended, info = self._env.step(int(action))
        dead = info["discount"] == 0
        done = {f"achievement_{name}": count for name, count in info["achievements"].items()}
        return observation, float(reward), bool(dead), bool(ended and not dead), done

    def _build(self, seed: int | None) -> Any:
        size, area = self._settings.image_size, self._settings.area
        return import_module("crafter").Env(
            area=(area, area), size=(size, size), length=self._settings.max_steps, seed=seed
        )


def factory(name: str, settings: CrafterSettings) -> Factory:
    """What makes a copy of Crafter."""
    if name:
        raise DiscorlError(f"Crafter has no task '{name}': write just crafter")
    return partial(CrafterEnv, settings)
