"""NetHack's tasks through the NetHack Learning Environment (nle)."""

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
from discorl.envs.suites.packages import choose, is_installed, load
from discorl.envs.suites.suite_settings import NetHackSettings
from discorl.errors import DiscorlError

EXTRA = "nethack"
PACKAGE = "nle"
TASKS = {
    "score": "NetHackScore-v0",
    "staircase": "NetHackStaircase-v0",
    "staircase-pet": "NetHackStaircasePet-v0",
    "oracle": "NetHackOracle-v0",
    "gold": "NetHackGold-v0",
    "eat": "NetHackEat-v0",
    "scout": "NetHackScout-v0",
    "challenge": "NetHackChallenge-v0",
}


@dataclass(frozen=True)
class NetHackOptions(NetHackSettings):
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


class SeededNetHack(gymnasium.Wrapper):
    """A NetHack whose games follow from ``reset(seed=...)``, and that keeps cuts from deaths apart.

    nle ignores the seed of ``reset``, and calls an episode that it cuts off terminated.
    """

    def __init__(self, env: gymnasium.Env, can_seed: bool) -> None:
        super().__init__(env)
        self._can_seed = can_seed
        self._random: np.random.Generator | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        if self._can_seed and self._random is not None:
            core, display = (int(n) for n in self._random.integers(2**31, size=2))
            game: Any = self.env.unwrapped
            game.seed(core=core, disp=display, reseed=False)
        observation, _ = self.env.reset(options=options)
        return _copy(observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, ended, truncated, info = self.env.step(int(action))
        cut = info["end_status"].name == "ABORTED" or bool(truncated and not ended)
        return _copy(observation), float(reward), bool(ended) and not cut, cut, {}


def installed() -> bool:
    """Whether the package that it needs is there."""
    return is_installed(PACKAGE)


def names() -> list[str]:
    """The tasks of NLE."""
    return list(TASKS)


def make(name: str, num_envs: int, options: Mapping[str, object]) -> VectorEnv:
    """Copies of the task called ``name``, which show a Dict of arrays."""
    nle = load(PACKAGE, EXTRA, "NetHack")
    chosen = opts.read(NetHackOptions, options, "NetHack")
    opts.at_least(1, num_envs=num_envs)
    task = choose(name, TASKS, "NetHack task")
    known = set(nle.nethack.OBSERVATION_DESC)
    for key in chosen.keys.split(","):
        if key not in known:
            raise DiscorlError(f"NetHack shows no '{key}': use {', '.join(sorted(known))}")
    maker = partial(_make_one, task, chosen)
    envs = vectorise([maker] * num_envs, chosen.processes, chosen.next_step)
    envs = stack_frames(envs, chosen.stack)
    envs.metadata = {**envs.metadata, "image_layout": "channels-first"}
    return envs


def _make_one(task: str, options: NetHackOptions) -> gymnasium.Env:
    load(PACKAGE, EXTRA, "NetHack")  # registers the tasks, in a process of its own once more
    given: dict[str, Any] = {"observation_keys": tuple(options.keys.split(","))}
    if options.character:
        given["character"] = options.character
    if options.max_steps:
        given["max_episode_steps"] = options.max_steps
    env = gymnasium.make(TASKS[task], disable_env_checker=True, **given)
    return SeededNetHack(env, can_seed=task != "challenge")  # which forbids it


def _copy(observation: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """nle writes into the same arrays at each step."""
    return {key: value.copy() for key, value in observation.items()}
