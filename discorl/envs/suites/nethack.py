"""NetHack's tasks through the NetHack Learning Environment (nle)."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np

from discorl.envs.gymnasium.vector import Factory, Info
from discorl.envs.suites.packages import choose
from discorl.envs.suites.suite_settings import NetHackSettings
from discorl.errors import DiscorlError

TASKS = ("score", "staircase", "staircase-pet", "oracle", "gold", "eat", "scout", "challenge")


class SeededNetHack(gymnasium.Wrapper):
    """A NetHack whose games follow from ``reset(seed=...)``, and that keeps cuts from deaths apart.

    nle ignores the seed of ``reset``, and calls an episode that it cuts off terminated.
    """

    def __init__(self, env: gymnasium.Env, can_seed: bool) -> None:
        super().__init__(env)
        self._can_seed = can_seed
        self._random: np.random.Generator | None = None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        if self._can_seed and self._random is not None:
            core, display = (int(n) for n in self._random.integers(2**31, size=2))
            game: Any = self.env.unwrapped
            game.seed(core=core, disp=display, reseed=False)
        observation, _ = self.env.reset(options=options)
        return _copy(observation), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, Info]:
        observation, reward, ended, truncated, info = self.env.step(int(action))
        cut = info["end_status"].name == "ABORTED" or bool(truncated and not ended)
        return _copy(observation), float(reward), bool(ended) and not cut, cut, {}


def factory(name: str, settings: NetHackSettings) -> Factory:
    """What makes a copy of the task called ``name``, which shows a Dict of arrays."""
    task = choose(name, TASKS, "NetHack task")
    known = set(import_module("nle").nethack.OBSERVATION_DESC)
    for key in settings.keys.split(","):
        if key not in known:
            raise DiscorlError(f"NetHack has no key '{key}': use {', '.join(sorted(known))}")
    return partial(_make_one, task, settings)


def _make_one(task: str, settings: NetHackSettings) -> gymnasium.Env:
    import_module("nle")  # registers the tasks, in a process of its own once more
    given: dict[str, Any] = {"observation_keys": tuple(settings.keys.split(","))}
    if settings.character:
        given["character"] = settings.character
    if settings.max_steps:
        given["max_episode_steps"] = settings.max_steps
    env_id = f"NetHack{task.title().replace('-', '')}-v0"  # NetHackStaircasePet-v0
    env = gymnasium.make(env_id, disable_env_checker=True, **given)
    return SeededNetHack(env, can_seed=task != "challenge")  # which forbids it


def _copy(observation: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """nle writes into the same arrays at each step."""
    return {key: value.copy() for key, value in observation.items()}
