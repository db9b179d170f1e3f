"""Environments by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from discorl.envs import suites
from discorl.envs.base import Env, TensorEnv
from discorl.envs.env_config import EnvConfig, check_unchanged
from discorl.envs.tasks.balance import Balance
from discorl.envs.tasks.bandit import Bandit
from discorl.envs.tasks.cartpole import CartPole
from discorl.envs.tasks.catch import Catch
from discorl.envs.tasks.chain import Chain
from discorl.envs.tasks.deep_sea import DeepSea
from discorl.envs.tasks.grid import Grid
from discorl.envs.tasks.grid_tasks import GRID_TASKS, GridTask
from discorl.envs.tasks.mdp import MDP
from discorl.envs.tasks.memory_length import Memory
from discorl.envs.tasks.sampling import IntRange
from discorl.envs.tasks.umbrella import Umbrella
from discorl.errors import DiscorlError
from discorl.suggestions import did_you_mean


class Entry(NamedTuple):
    """Names of tensor-native tasks: how they are written, and what makes them."""

    name: str
    """As listed, ways to write it with commas between them; capitals stand for numbers."""
    description: str
    make: Callable[..., TensorEnv]
    """Takes ``num_envs``, the numbers, what ``ending`` names, and ``device`` and ``task_seed``."""
    ending: str = ""
    """A pattern of what may follow the name as listed."""

    def read(self, name: str) -> tuple[list[int], dict[str, Any]] | None:
        """The numbers and the ending in ``name``; None if it is the name of something else."""
        for form in self.name.split(", "):
            pattern = re.sub("[A-Z]+", r"(\\d{1,30})", form) + self.ending
            if match := re.fullmatch(pattern, name, re.ASCII):
                return [int(n) for n in match.groups() if n and n.isdecimal()], match.groupdict()
        return None


def _chain(
    num_envs: int, delay: IntRange = (5, 30), kind: str | None = None, **where: Any
) -> Chain:
    noise = 1.0 if kind in ("noisy", "noisy-bits") else 0.0
    num_bits = 20 if kind in ("bits", "noisy-bits") else 0
    return Chain(num_envs, delay, noise, num_bits, shuffle_actions=True, **where)


def _grid(task: GridTask, num_envs: int, moves: int = 5, **where: Any) -> Grid:
    return Grid(num_envs, task, moves, **where)


_deep_sea = partial(DeepSea, shuffle_actions=True)
_cartpole = partial(
    CartPole,
    gravity=(5.0, 15.0),
    cart_mass=(0.5, 2.0),
    pole_mass=(0.05, 0.3),
    half_length=(0.25, 1.0),
    force=(5.0, 15.0),
    horizon=(50, 500),
    shuffle_actions=True,
    shuffle_observations=True,
)
_sampled_catch = partial(Catch, rows=(4, 8), columns=(4, 8), shuffle_actions=True)

TASKS = [
    Entry("catch", "Catch on an 8x8 board", Catch),
    Entry("catch:ROWSxCOLUMNS", "Catch on a board of the given size", Catch),
    Entry("catch:sampled", "Catch on a random board, 4x4 to 8x8", _sampled_catch),
    *(
        Entry(f"grid:{name}", task.description, partial(_grid, task), r"(?::(\d{1,30}))?")
        for name, task in GRID_TASKS.items()
    ),
    Entry(
        "chain, chain:DELAY",
        "a first action that pays off after DELAY steps (5 to 30); add :noisy, :bits or "
        ":noisy-bits",
        _chain,
        r"(?::(?P<kind>noisy|bits|noisy-bits))?",
    ),
    Entry("deep-sea:SIZE", "a treasure that takes exploration to find", _deep_sea),
    Entry("deep-sea", "a deep sea of random size, 4 to 10", partial(_deep_sea, size=(4, 10))),
    Entry("memory:LENGTH", "a cue to remember for LENGTH steps: needs a recurrent network", Memory),
    Entry(
        "memory",
        "a cue to remember for a random time, 2 to 10 steps",
        partial(Memory, length=(2, 10), shuffle_actions=True),
    ),
    Entry("umbrella:LENGTH", "one early choice among random rewards", Umbrella),
    Entry(
        "umbrella",
        "an umbrella chain of random length, 5 to 30",
        partial(Umbrella, length=(5, 30), shuffle_actions=True),
    ),
    Entry("bandit:ARMS, bandit:ARMSxCONTEXTS", "a random bandit with one-step episodes", Bandit),
    Entry("cartpole", "the dynamics of CartPole-v1", CartPole),
    Entry(
        "cartpole:sampled",
        "cart-pole with random masses, length, gravity, force and horizon",
        _cartpole,
    ),
    Entry(
        "balance, balance:DIMENSIONSxACTIONS",
        "a random linear system to keep stable (3x3)",
        Balance,
    ),
    Entry("mdp, mdp:STATESxACTIONS", "a random Markov decision process (10x3)", MDP),
]

KNOWN = {entry.name: entry.description for entry in TASKS} | {
    "grid:NAME:MOVES": "one of these grid worlds with 4, 5 (the default) or 9 moves",
    "NAME@SEED": "another random version of any task above, such as bandit:5@7",
    "gym:ID": "a Gymnasium environment, such as gym:CartPole-v1",
    "gym:MODULE:ID": "the same, from a package that registers it on import",
}
"""Names and descriptions, as ``discorl envs`` lists them."""


def make_env(
    name: str,
    num_envs: int,
    device: torch.device | str = "cpu",
    options: EnvConfig | None = None,
    frame_stack: int | None = None,
    num_agents: int = 1,
) -> Env:
    """Copies of the environment called ``name``, for one agent or for several that share them.

    Suites of games stack their last ``frame_stack`` frames; None for each suite's default.
    """
    suites.check_settings(name, options.suite if options else None)
    if name.startswith("gym:"):
        from discorl.envs.gymnasium import gymnasium_env  # imported late: Gymnasium loads slowly

        return gymnasium_env(
            name.removeprefix("gym:"), num_envs, device, options, num_agents=num_agents
        )
    if suite := suites.find(name):
        from discorl.envs.gymnasium import GymnasiumEnv

        options = options or EnvConfig()
        envs = suite.make(
            name,
            num_envs,
            options.suite,
            stack=frame_stack if suite.num_frames else None,
            processes=options.workers == "async",
            next_step=options.autoreset == "next-step",
        )
        # No need to guess the layout of images if the suite states it.
        options = replace(options, image_layout=suite.image_layout or options.image_layout)
        return GymnasiumEnv(
            envs, device, name=f"'{name}'", options=options, owned=True, num_agents=num_agents
        )
    env = make_tensor_env(name, num_envs, device)
    check_unchanged(options, f"'{name}'")
    return env


def is_tensor_task(name: str) -> bool:
    """Whether the environment called ``name`` would live on tensors, if there is one."""
    return not name.startswith("gym:") and suites.find(name) is None


def imported_module(name: str) -> str | None:
    """The module that the name of an environment says to import; None if it says nothing."""
    prefix, _, rest = name.partition(":")
    return (rest.rpartition(":")[0] or None) if prefix in ("gym", "dm_env") else None


def make_tensor_env(name: str, num_envs: int, device: torch.device | str = "cpu") -> TensorEnv:
    """Copies of a tensor-native task. ``name@SEED`` is another draw of what the task draws."""
    body, at, seed = name.partition("@")
    is_seed = re.fullmatch(r"\d{1,18}", seed, re.ASCII)
    where = {"device": torch.device(device), "task_seed": int(seed) if is_seed else 0}
    for entry in TASKS if is_seed or not at else []:
        if (found := entry.read(body)) is not None:
            numbers, ending = found
            return entry.make(num_envs, *numbers, **ending, **where)
    raise DiscorlError(f"no environment is called '{name}': use {_names_like(body)}")


def _names_like(name: str) -> str:
    """The names that begin like ``name``, or every beginning, and what may have been meant."""
    names = [*KNOWN, *(suite.pattern for suite in suites.SUITES)]
    head = name.partition(":")[0]
    if alike := [known for known in names if re.match(rf"{re.escape(head)}(:|,|$)", known)]:
        return ", ".join(alike)
    heads = dict.fromkeys(re.split("[:,]", known)[0] for known in KNOWN if "@" not in known)
    heads |= dict.fromkeys(suite.prefix for suite in suites.SUITES)
    meant = _without_prefix(name) or did_you_mean(head, heads)
    return f"{', '.join(heads)}; run 'discorl envs' to see all forms{meant}"


def _without_prefix(name: str) -> str:
    """What may have been meant by a name that lacks its prefix: ``Pong``, ``CartPole-v1``."""
    import gymnasium  # imported late: it loads slowly

    of_suites = [task for whole in suites.WHOLE for task in suites.tasks_of(whole)]
    full = {task.partition(":")[2]: task for task in reversed(of_suites)}
    full |= {env_id: f"gym:{env_id}" for env_id in gymnasium.registry}
    meant = did_you_mean(name, full)
    for short, whole in full.items():
        meant = meant.replace(f"'{short}'", f"'{whole}'")
    return meant
