"""Action masks of Gymnasium environments, as people give them.

An environment says which actions are allowed in one of three ways: ``info["action_mask"]``, from
``reset`` and from every ``step``; a method ``action_masks()``, as sb3-contrib has it; or an entry
``action_mask`` of its Dict observations, as PettingZoo has it, which is then no part of what the
agent sees. A ready vector environment has the method itself, or its copies have it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, VectorWrapper

from discorl.envs.gymnasium.actions import ActionMap
from discorl.errors import DiscorlError, EnvFailure

KEY = "action_mask"
METHOD = "action_masks"


def has_method(env: gymnasium.Env) -> bool:
    """Whether an environment, or what it wraps, has the method ``action_masks``."""
    return env.has_wrapper_attr(METHOD) and callable(env.get_wrapper_attr(METHOD))


def method_of_all(envs: VectorEnv) -> Callable[[], Any] | None:
    """What asks a ready vector environment for the masks of all copies; None if nothing does."""
    while not callable(own := getattr(envs, METHOD, None)):
        if isinstance(envs, SyncVectorEnv | AsyncVectorEnv):
            has_it = all(envs.call("has_wrapper_attr", METHOD))
            return partial(envs.call, METHOD) if has_it else None
        if not isinstance(envs, VectorWrapper):
            return None
        envs = envs.env
    return own


def without_mask(space: gymnasium.Space, who: str) -> tuple[gymnasium.Space, bool]:
    """The space of what an agent sees, and whether observations have a mask beside that."""
    if not isinstance(space, spaces.Dict) or KEY not in space.spaces:
        return space, False
    seen = {key: part for key, part in space.spaces.items() if key != KEY}
    if not seen:
        raise DiscorlError(f"{who} has no observations besides its '{KEY}'")
    return spaces.Dict(seen), True


class Masks:
    """Reads the masks of a batch of copies, and checks them."""

    def __init__(
        self,
        who: str,
        actions: ActionMap,
        num_envs: int,
        in_observations: bool,
        ask: Callable[[], Any] | None = None,
    ) -> None:
        """``ask`` is for masks that are neither in observations nor in infos."""
        self._who = who
        self._actions = actions
        self._num_envs = num_envs
        self._in_observations = in_observations
        self._ask = ask
        self.is_used = in_observations
        """Whether there are masks; without them in observations, the first reset decides."""

    def begin(self, shown: Any, info: dict[str, Any]) -> np.ndarray | None:
        """The masks after all copies were reset. [B, A]"""
        is_told = self._in_observations or KEY in info
        self._ask = None if is_told else self._ask
        self.is_used = is_told or self._ask is not None
        return self.read(shown, info)

    def read(
        self, shown: Any, info: dict[str, Any], over: np.ndarray | None = None
    ) -> np.ndarray | None:
        """The masks of a batch of observations, None if there are none. [B, A]

        Where an episode is ``over``, nothing needs to be allowed: the next action is ignored.
        """
        if not self.is_used:
            if KEY in info:
                raise EnvFailure(
                    f"{self._who} gives info['{KEY}'] in step, but not in reset: give it in both"
                )
            return None
        masks = np.ones((self._num_envs, self._actions.num_actions), np.bool_)
        given = shown[KEY] if self._in_observations else info.get(KEY)
        present = None if self._in_observations else info.get(f"_{KEY}")
        if self._ask is not None:
            given, present = self._ask(), None
            if len(given) != self._num_envs:
                raise EnvFailure(
                    f"{self._who} gave {len(given)} action masks for {self._num_envs} copies"
                )
        if given is None:  # no copy forbids anything
            return masks
        for copy in range(self._num_envs):
            is_over = over is not None and over[copy] and not np.any(given[copy])
            if (present is None or present[copy]) and not is_over:
                masks[copy] = self._one(given[copy], copy)
        return masks

    def final(self, info: dict[str, Any], cut_off: np.ndarray) -> np.ndarray | None:
        """The masks of the last observations of episodes that were cut off, if copies reset in the
        same step. [B, A]; rows that were not cut off, or are not known, are all True."""
        if not self.is_used:
            return None
        masks = np.ones((self._num_envs, self._actions.num_actions), np.bool_)
        for copy in np.flatnonzero(cut_off).tolist():
            given = self._given_at_last(info, copy)
            # An episode that is over may allow nothing: its value is then that of any action.
            if given is not None and np.any(given):
                masks[copy] = self._one(given, copy)
        return masks

    def _given_at_last(self, info: dict[str, Any], copy: int) -> Any:
        if self._in_observations:
            shown = info.get("final_obs")
            if shown is None:
                return None
            return shown[KEY][copy] if isinstance(shown, dict) else shown[copy][KEY]
        infos = info.get("final_info")
        if isinstance(infos, dict):  # of arrays, as Gymnasium joins them
            present = infos.get(f"_{KEY}")
            is_known = KEY in infos and (present is None or present[copy])
            return infos[KEY][copy] if is_known else None
        return None

    def _one(self, given: Any, copy: int) -> np.ndarray:
        mask = np.asarray(given)
        who = f"environment {copy} of {self._who}"
        wanted = self._actions.num_actions
        if mask.shape != (wanted,):
            raise EnvFailure(
                f"{who} gave an action mask of shape {mask.shape}, but it has {wanted} actions: "
                f"give one entry for each, 1 or True where it is allowed"
            )
        if not mask.any():
            raise EnvFailure(f"{who} gave an action mask that allows no action: allow at least one")
        return mask.astype(np.bool_)
