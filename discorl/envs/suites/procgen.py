"""ProcGen's 16 games through envpool, which plays them in C++ threads."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from discorl.envs.gymnasium.vector import Info, Shown
from discorl.envs.suites.copies import stack_frames
from discorl.envs.suites.packages import choose
from discorl.envs.suites.suite_settings import ProcgenSettings
from discorl.errors import DiscorlError

GAMES = (
    "bigfish", "bossfight", "caveflyer", "chaser", "climber", "coinrun", "dodgeball", "fruitbot",
    "heist", "jumper", "leaper", "maze", "miner", "ninja", "plunder", "starpilot",
)  # fmt: skip


class SeededPool(VectorEnv):
    """An envpool that ``reset(seed=...)`` rebuilds, because its seed is fixed when it is built.

    An episode's last step and its reset are two steps (NEXT_STEP), envpool's only way.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, build: Callable[[int], Any], num_envs: int) -> None:
        self._build = build
        self._pool: Any = None  # what __del__ finds if building fails
        self._pool = build(0)
        self.num_envs = num_envs
        self.single_observation_space = self._pool.single_observation_space
        self.single_action_space = self._pool.single_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> Shown:
        if seed is not None:
            self._pool.close()
            self._pool = self._build(seed % 2**30)  # it counts on from there in 32 bits
        frames, infos = self._pool.reset()
        return frames, _arrays(infos)

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Info]:
        *shown, infos = self._pool.step(np.asarray(actions, np.int32))
        return *shown, _arrays(infos)

    def close_extras(self, **kwargs: Any) -> None:
        if self._pool is not None:
            self._pool.close()


def make(name: str, num_envs: int, settings: ProcgenSettings, stack: int) -> VectorEnv:
    """Copies of the game called ``name``; observations are uint8 [3 * stack, 64, 64]."""
    envpool = import_module("envpool")
    game = choose(name, GAMES, "ProcGen game")
    task = f"{game.capitalize()}{settings.difficulty.capitalize()}-v0"

    def build(seed: int) -> Any:
        return envpool.make(
            task,
            env_type="gymnasium",
            num_envs=num_envs,
            num_threads=settings.threads,
            seed=seed,
            num_levels=settings.levels,
            start_level=settings.start_level,
        )

    try:
        envs = SeededPool(build, num_envs)
    except ImportError as e:
        raise DiscorlError(
            "ProcGen needs the Qt 5 libraries; on Debian: "
            f"apt-get install libqt5gui5 libqt5core5a ({e.__cause__ or e})"
        ) from None
    return stack_frames(envs, stack)


def _arrays(infos: Info) -> Info:
    """What envpool says of each environment, without its tables of players."""
    return {key: value for key, value in infos.items() if isinstance(value, np.ndarray)}
