"""The tasks on tensors, by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from discorl.envs.base import TensorEnv
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
        return read_name(self.name, name, self.ending)


def read_name(forms: str, name: str, ending: str = "") -> tuple[list[int], dict[str, Any]] | None:
    """``Entry.read``, for one whose ``name`` is ``forms``."""
    for form in forms.split(", "):
        pattern = re.sub("[A-Z]+", r"(\\d{1,30})", form) + ending
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
