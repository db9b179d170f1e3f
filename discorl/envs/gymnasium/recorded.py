"""Episodes that can be played again: from their seed, by the same actions."""

from __future__ import annotations

import hashlib
from typing import Any

import gymnasium
import numpy as np

from discorl.envs.failures import one_line
from discorl.envs.gymnasium.spaces import observation_leaves


class Recorded(gymnasium.Wrapper):
    """Gives each episode a seed of its own, and records the episode that is being played.

    An environment that depends on nothing but its seed and the actions gets back to where it was
    when these are replayed. What it shows on the way is compared by a checksum.
    """

    def __init__(self, env: gymnasium.Env, index: int) -> None:
        super().__init__(env)
        self._index = index
        self._leaves = observation_leaves(env.observation_space, f"environment {index}", "auto")
        self._first_seed = 0
        self._episode = 0
        """How many have ended since that seed was given."""
        self._actions: list[np.ndarray] = []
        self._shown = hashlib.sha256()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is None:
            self._episode += 1
        else:
            self._first_seed, self._episode = int(seed), 0
        return self._begin(options)

    def _begin(self, options: dict[str, Any] | None = None) -> Any:
        source = np.random.SeedSequence((self._first_seed, self._episode))
        observation, info = self.env.reset(seed=int(source.generate_state(1)[0]), options=options)
        self._actions, self._shown = [], hashlib.sha256()
        self._note(observation)
        return observation, info

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._actions.append(np.array(action))
        self._note(observation, reward, terminated, truncated)
        return observation, reward, terminated, truncated, info

    def _note(self, observation: Any, *numbers: Any) -> None:
        for leaf in self._leaves:
            self._shown.update(np.ascontiguousarray(leaf.find(observation)).tobytes())
        self._shown.update(np.array(numbers, np.float64).tobytes())

    def recording(self) -> dict[str, Any]:
        """The episode so far."""
        return {
            "first_seed": self._first_seed,
            "episode": self._episode,
            "actions": np.array(self._actions),
            "shown": self._shown.hexdigest(),
        }

    def replay(self, recordings: list[dict[str, Any]]) -> str:
        """Play this copy's recording; says in which way it went differently, or nothing."""
        try:
            own = recordings[self._index]
            self._first_seed, self._episode = int(own["first_seed"]), int(own["episode"])
            self._begin()
            for i, action in enumerate(own["actions"]):
                _, _, *ended, _ = self.step(action)
                if any(ended):
                    return f"environment {self._index} ended its episode at step {i + 1}"
        except Exception as e:  # whatever it is, the episodes that follow may go better
            return f"environment {self._index} failed: {one_line(e)}"
        if self._shown.hexdigest() != own["shown"]:
            return f"environment {self._index} showed something else"
        return ""
