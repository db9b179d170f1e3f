"""Action spaces as numbered actions, which is what update rules are for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import gymnasium
import numpy as np
from gymnasium import spaces

from discorl.errors import DiscorlError

MAX_ACTIONS = 1024
"""The most combinations that are enumerated: an agent predicts something for each."""


@dataclass(frozen=True)
class ActionMap:
    """How many actions there are, and what the environment calls them."""

    num_actions: int
    translate: Callable[[np.ndarray], np.ndarray]
    """Numbers [B] -> a batch of the environment's own actions."""


def action_map(space: gymnasium.Space, who: str, bins: int) -> ActionMap:
    """Number the actions of a space; the last dimension of several turns fastest."""
    if isinstance(space, spaces.Discrete):
        start, dtype = space.start, space.dtype
        return ActionMap(int(space.n), lambda a: (a + start).astype(dtype))
    advice = "wrap it to offer fewer actions"
    if isinstance(space, spaces.MultiDiscrete):
        starts = np.ravel(space.start)
        choices = [np.arange(n) + s for n, s in zip(space.nvec.ravel(), starts, strict=True)]
    elif isinstance(space, spaces.MultiBinary):
        choices = [np.arange(2)] * math.prod(space.shape)
    elif isinstance(space, spaces.Box):
        choices, advice = _binned(space, who, bins), _fewer_bins(space)
    else:
        raise DiscorlError(
            f"{who} has a {type(space).__name__} action space; only Discrete, MultiDiscrete, "
            "MultiBinary and Box are supported, because update rules choose among numbered "
            "actions: wrap it with gymnasium.wrappers.TransformAction"
        )
    num_actions = math.prod(map(len, choices))
    if not choices or not num_actions:
        raise DiscorlError(f"{who} has no actions: its action space {space} is empty")
    if num_actions > MAX_ACTIONS:
        raise DiscorlError(
            f"{who} has {num_actions} combinations of actions in {len(choices)} dimensions, but "
            f"the limit is {MAX_ACTIONS}: {advice}"
        )
    table = np.array(list(itertools.product(*choices)), space.dtype)
    table = table.reshape(num_actions, *space.shape)
    return ActionMap(num_actions, lambda a: table[a])


def _binned(space: spaces.Box, who: str, bins: int) -> list[np.ndarray]:
    """Values of each dimension: all whole numbers where they are few enough, else ``bins``."""
    if not space.is_bounded():
        raise DiscorlError(
            f"{who} has unbounded continuous actions, which cannot be divided into bins: wrap it "
            "with gymnasium.wrappers.RescaleAction or TransformAction"
        )
    bounds = list(zip(space.low.ravel().tolist(), space.high.ravel().tolist(), strict=True))
    is_whole = np.issubdtype(space.dtype, np.integer)
    if is_whole and math.prod(high - low + 1 for low, high in bounds) <= MAX_ACTIONS:
        return [np.arange(low, high + 1) for low, high in bounds]
    values = [np.linspace(low, high, bins) for low, high in bounds]
    return [np.unique(v.round()) for v in values] if is_whole else values


def _fewer_bins(space: spaces.Box) -> str:
    """What to do about too many combinations."""
    size = math.prod(space.shape)
    fits = max((b for b in range(2, MAX_ACTIONS + 1) if b**size <= MAX_ACTIONS), default=None)
    return f"set --action-bins {fits} or less" if fits else "wrap it to have fewer dimensions"
