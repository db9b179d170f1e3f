"""MinAtar's five games: Atari in miniature, on 10x10 boards."""

from __future__ import annotations

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
from discorl.envs.suites.suite_settings import MinAtarSettings

EXTRA = "minatar"
PACKAGE = "minatar"


@dataclass(frozen=True)
class MinAtarOptions(MinAtarSettings):
    """The settings, and what a run decides by settings of its own."""

    processes: bool = False
    """A process for each environment."""
    next_step: bool = False
    """Spend a step on resetting, after the one that ends an episode."""


class MinAtarEnv(gymnasium.Env):
    """One game. Observations are [10, 10, C] images, 255 where an object of that channel is.

    255 rather than 1: networks divide uint8 by 255, and the replay keeps bytes.
    """

    def __init__(self, game: str, options: MinAtarOptions) -> None:
        self._game = load(PACKAGE, EXTRA, "MinAtar").Environment(
            game,
            sticky_action_prob=options.sticky,
            difficulty_ramping=options.difficulty_ramping,
        )
        minimal = self._game.minimal_action_set()
        self._actions = range(self._game.num_actions()) if options.full_actions else minimal
        shape = tuple(self._game.state_shape())
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._game.seed(seed)
        self._game.reset()
        self._game.last_action = 0  # else the first action of an episode may repeat the last one's
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward, ended = self._game.act(self._actions[action])
        return self._observe(), float(reward), bool(ended), False, {}

    def _observe(self) -> np.ndarray:
        return self._game.state().astype(np.uint8) * np.uint8(255)


def installed() -> bool:
    """Whether the package that it needs is there."""
    return is_installed(PACKAGE)


def names() -> list[str]:
    """The five games."""
    return ["asterix", "breakout", "freeway", "seaquest", "space_invaders"]


def make(name: str, num_envs: int, options: Mapping[str, object]) -> VectorEnv:
    """Copies of the game called ``name``."""
    load(PACKAGE, EXTRA, "MinAtar")
    chosen = opts.read(MinAtarOptions, options, "MinAtar")
    opts.at_least(1, num_envs=num_envs)
    maker = partial(MinAtarEnv, choose(name, names(), "MinAtar game"), chosen)
    envs = vectorise([maker] * num_envs, chosen.processes, chosen.next_step)
    envs.metadata = {**envs.metadata, "image_layout": "channels-last"}
    return envs
