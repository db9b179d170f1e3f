"""Environments by name."""

from __future__ import annotations

import re
from collections.abc import Callable
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
from discorl.envs.tasks.grid_tasks import GRID_TASKS
from discorl.envs.tasks.mdp import MDP
from discorl.envs.tasks.memory_length import Memory
from discorl.envs.tasks.umbrella import Umbrella
from discorl.errors import DiscorlError


class Entry(NamedTuple):
    """Names of tensor-native tasks: how they are written, and what makes them."""

    name: str
    """As listed; capitals stand for what the user fills in."""
    pattern: str
    description: str
    make: Callable[..., TensorEnv]
    """Takes ``num_envs``, the groups of ``pattern``, and keywords ``device`` and ``task_seed``."""


def _grid(num_envs: int, name: str, moves: str | None, **where: Any) -> Grid:
    return Grid(num_envs, GRID_TASKS[name], int(moves or 5), **where)


def _chain(num_envs: int, delay: str | None, kind: str | None, **where: Any) -> Chain:
    return Chain(
        num_envs,
        int(delay) if delay else (5, 30),
        noise=1.0 if kind in ("noisy", "noisy-bits") else 0.0,
        num_bits=20 if kind in ("bits", "noisy-bits") else 0,
        shuffle_actions=True,
        **where,
    )


def _sampled_cartpole(num_envs: int, **where: Any) -> CartPole:
    return CartPole(
        num_envs,
        gravity=(5.0, 15.0),
        cart_mass=(0.5, 2.0),
        pole_mass=(0.05, 0.3),
        half_length=(0.25, 1.0),
        force=(5.0, 15.0),
        horizon=(50, 500),
        shuffle_actions=True,
        shuffle_observations=True,
        **where,
    )


# Makers are looked up when called, so that a test can put its own class in their place.
TASKS = [
    Entry("catch", "catch", "Catch on an 8x8 board", lambda n, **w: Catch(n, **w)),
    Entry(
        "catch:ROWSxCOLUMNS",
        r"catch:(\d+)x(\d+)",
        "Catch on a board of that size",
        lambda n, rows, columns, **w: Catch(n, int(rows), int(columns), **w),
    ),
    Entry(
        "catch:sampled",
        "catch:sampled",
        "Catch on a drawn board, 4x4 to 8x8",
        lambda n, **w: Catch(n, (4, 8), (4, 8), shuffle_actions=True, **w),
    ),
    *(
        Entry(f"grid:{name}", rf"grid:({name})(?::(\d+))?", task.description, _grid)
        for name, task in GRID_TASKS.items()
    ),
    Entry(
        "chain, chain:DELAY",
        r"chain(?::(\d+))?(?::(noisy|bits|noisy-bits))?",
        "a first action that pays after DELAY steps (5 to 30); may end in :noisy, :bits or "
        ":noisy-bits",
        _chain,
    ),
    Entry(
        "deep-sea:SIZE",
        r"deep-sea:(\d+)",
        "a treasure that takes exploration to find",
        lambda n, size, **w: DeepSea(n, int(size), shuffle_actions=True, **w),
    ),
    Entry(
        "deep-sea",
        "deep-sea",
        "a deep sea of a drawn size, 4 to 10",
        lambda n, **w: DeepSea(n, (4, 10), shuffle_actions=True, **w),
    ),
    Entry(
        "memory:LENGTH",
        r"memory:(\d+)",
        "a cue to remember for LENGTH steps: needs a recurrent network",
        lambda n, length, **w: Memory(n, int(length), **w),
    ),
    Entry(
        "memory",
        "memory",
        "a cue to remember for a drawn time, 2 to 10 steps",
        lambda n, **w: Memory(n, (2, 10), shuffle_actions=True, **w),
    ),
    Entry(
        "umbrella:LENGTH",
        r"umbrella:(\d+)",
        "one early choice among random rewards",
        lambda n, length, **w: Umbrella(n, int(length), **w),
    ),
    Entry(
        "umbrella",
        "umbrella",
        "an umbrella chain of a drawn length, 5 to 30",
        lambda n, **w: Umbrella(n, (5, 30), shuffle_actions=True, **w),
    ),
    Entry(
        "bandit:ARMS, bandit:ARMSxCONTEXTS",
        r"bandit:(\d+)(?:x(\d+))?",
        "a drawn bandit: episodes of one step",
        lambda n, arms, contexts, **w: Bandit(n, int(arms), int(contexts or 1), **w),
    ),
    Entry("cartpole", "cartpole", "the dynamics of CartPole-v1", lambda n, **w: CartPole(n, **w)),
    Entry(
        "cartpole:sampled",
        "cartpole:sampled",
        "cart-pole with drawn masses, length, gravity, force and horizon",
        _sampled_cartpole,
    ),
    Entry(
        "balance, balance:DIMENSIONSxACTIONS",
        r"balance(?::(\d+)x(\d+))?",
        "a drawn linear system to keep from drifting apart (3x3)",
        lambda n, size, actions, **w: Balance(n, int(size or 3), int(actions or 3), **w),
    ),
    Entry(
        "mdp, mdp:STATESxACTIONS",
        r"mdp(?::(\d+)x(\d+))?",
        "a drawn Markov decision process (10x3)",
        lambda n, states, actions, **w: MDP(n, int(states or 10), int(actions or 3), **w),
    ),
]

KNOWN = {entry.name: entry.description for entry in TASKS} | {
    "grid:NAME:MOVES": "one of these grid worlds with 4, 5 (as without) or 9 moves",
    "NAME@SEED": "another draw of what any task above draws, such as bandit:5@7",
    "gym:ID": "a Gymnasium environment, such as gym:CartPole-v1",
    "gym:MODULE:ID": "the same, from a package that registers it when it is imported",
}
"""Names and descriptions, as ``discorl envs`` lists them."""


def make_env(
    name: str,
    num_envs: int,
    device: torch.device | str = "cpu",
    options: EnvConfig | None = None,
    frame_stack: int | None = None,
) -> Env:
    """Copies of the environment called ``name``.

    Suites of games stack their last ``frame_stack`` frames, or as many as is their own default.
    """
    suites.check_settings(name, options.suite if options else None)
    if name.startswith("gym:"):
        from discorl.envs.gymnasium import gymnasium_env  # imported late: Gymnasium loads slowly

        return gymnasium_env(name.removeprefix("gym:"), num_envs, device, options)
    if suite := suites.find(name):
        from discorl.envs.suites.tensors import suite_env

        return suite_env(suite, name, num_envs, device, options, frame_stack)
    env = make_tensor_env(name, num_envs, device)
    check_unchanged(options, f"'{name}'")
    return env


def make_tensor_env(name: str, num_envs: int, device: torch.device | str = "cpu") -> TensorEnv:
    """Copies of a tensor-native task. ``name@SEED`` is another draw of what the task draws."""
    body, at, seed = name.partition("@")
    for entry in TASKS:
        match = re.fullmatch(entry.pattern, body, re.ASCII)
        if match and (not at or re.fullmatch(r"\d{1,18}", seed, re.ASCII)):
            where = {"device": torch.device(device), "task_seed": int(seed or 0)}
            return entry.make(num_envs, *match.groups(), **where)
    raise DiscorlError(f"no environment is called '{name}': use {_names_like(body)}")


def _names_like(name: str) -> str:
    """The names that begin like ``name``, or every beginning."""
    names = [*KNOWN, *(suite.pattern for suite in suites.SUITES)]
    head = name.partition(":")[0]
    if alike := [known for known in names if re.match(rf"{re.escape(head)}(:|,|$)", known)]:
        return ", ".join(alike)
    heads = dict.fromkeys(re.split("[:,]", known)[0] for known in KNOWN if "@" not in known)
    heads |= dict.fromkeys(suite.prefix for suite in suites.SUITES)
    return f"{', '.join(heads)}; 'discorl envs' lists what may follow them"
