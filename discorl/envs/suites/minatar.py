"""MinAtar's five games: Atari in miniature, on 10x10 boards."""

from __future__ import annotations

from functools import partial
from importlib import import_module

import gymnasium
import numpy as np

from discorl.envs.gymnasium.vector import Factory, Info, Shown
from discorl.envs.suites.packages import choose
from discorl.envs.suites.suite_settings import MinAtarSettings

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")


class MinAtarEnv(gymnasium.Env):
    """One game. Observations are [10, 10, C] images, 255 where an object of that channel is.

    255 rather than 1: networks divide uint8 by 255, and the replay keeps bytes.
    """

    def __init__(self, game: str, settings: MinAtarSettings) -> None:
        self._game = import_module("minatar").Environment(
            game,
            sticky_action_prob=settings.sticky,
            difficulty_ramping=settings.difficulty_ramping,
        )
        minimal = self._game.minimal_action_set()
        self._actions = range(self._game.num_actions()) if settings.full_actions else minimal
        shape = tuple(self._game.state_shape())
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> Shown:
        super().reset(seed=seed)
        if seed is not None:
            self._game.seed(seed)
        self._game.reset()
        self._game.last_action = 0  # else the first action of an episode may repeat the last one's
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, Info]:
        reward, ended = self._game.act(self._actions[action])
        return self._observe(), float(reward), bool(ended), False, {}

    def _observe(self) -> np.ndarray:
        return self._game.state().astype(np.uint8) * np.uint8(255)


def factory(name: str, settings: MinAtarSettings) -> Factory:
    """What makes a copy of the game called ``name``."""
    return partial(MinAtarEnv, choose(name, GAMES, "MinAtar game"), settings)
