"""Running normalisation of vector observations and of rewards."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium.wrappers.utils import RunningMeanStd
from torch import Tensor

from discorl.errors import DiscorlError, EnvFailure

EPS = 1e-8
MAX_ABS = 10.0
"""Normalised numbers are clipped to this: what is rare at first looks extreme."""
REWARD = "(reward)."
"""What the names of reward statistics begin with in a file; an observation may be called reward."""
REWARD_DISCOUNT = 0.99
"""Of the sums that rewards are measured by; Gymnasium's and Stable-Baselines3's choice."""


Scale = tuple[np.ndarray, np.ndarray]
"""What a vector is normalised by: subtract the first, divide by the second."""


class ObservationNormaliser:
    """The moments of each vector of an observation, for each agent by itself."""

    def __init__(self, sizes: dict[str, int], num_agents: int = 1) -> None:
        self._sizes = sizes
        self._moments = [self._new() for _ in range(num_agents)]
        self.frozen = False
        """Whether what is seen no longer changes the moments, as in evaluation."""

    def _new(self) -> dict[str, RunningMeanStd]:
        return {name: RunningMeanStd(0.0, (size,)) for name, size in self._sizes.items()}

    def check(self, name: str, x: np.ndarray, rows: np.ndarray | None = None) -> None:
        """Raise if a vector has infinities, which the clip would hide, or NaN.

        ``rows`` says which of the batch matter; by default all do.
        """
        if name not in self._sizes or np.isfinite(x).all():
            return
        bad = ~np.isfinite(x).all(1) & (True if rows is None else rows)
        if bad.any():
            raise EnvFailure(
                f"environment {int(bad.argmax())} sent observations that are NaN or infinite: "
                "fix the environment, or wrap it to clip or replace them"
            )

    def observe(self, name: str, x: np.ndarray, counted: np.ndarray | bool = True) -> None:
        """Count a batch that passed the check, or its rows ``counted`` [B], if it is a vector and
        the moments are not frozen."""
        if name not in self._sizes or self.frozen:
            return
        rows = np.broadcast_to(counted, len(x)).reshape(len(self._moments), -1)
        for moments, of_one, counts in zip(self._moments, self._apart(x), rows, strict=True):
            if counts.any():
                moments[name].update(of_one[counts].astype(np.float64))

    def __call__(self, name: str, x: np.ndarray) -> np.ndarray:
        """The batch normalised, if it is a vector."""
        if name not in self._sizes:
            return x
        parts = [
            (of_one - moments[name].mean) / _deviation(moments[name])
            for moments, of_one in zip(self._moments, self._apart(x), strict=True)
        ]
        return np.concatenate(parts).clip(-MAX_ABS, MAX_ABS).astype(np.float32)

    def scales(self) -> dict[str, Scale]:
        """The mean and deviation that the first agent's vectors are normalised by, by name."""
        return {name: (m.mean, _deviation(m)) for name, m in self._moments[0].items()}

    def _apart(self, x: np.ndarray) -> np.ndarray:
        """The rows of each agent. [B, ...] -> [P, B / P, ...]"""
        return x.reshape(len(self._moments), -1, *x.shape[1:])

    def forget(self, agents: np.ndarray) -> None:
        """Start from nothing for some agents, [P] bool."""
        for agent in agents.nonzero()[0]:
            self._moments[agent] = self._new()

    def state_dict(self) -> dict[str, Tensor]:
        """Everything it remembers, by name; with an axis of agents if there are several."""
        state = {
            f"{name or 'observation'}.{key}": torch.tensor(
                np.stack([getattr(moments[name], field) for moments in self._moments]),
                dtype=torch.float64,
                device="cpu",
            )
            for name in self._sizes
            for key, field in _FIELDS.items()
        }
        return state if len(self._moments) > 1 else {k: x[0] for k, x in state.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from what ``state_dict`` returned."""
        check_moments(self.state_dict(), state, "observation")
        for name in self._sizes:
            for key, field in _FIELDS.items():
                saved = state[f"{name or 'observation'}.{key}"].cpu().numpy()
                saved = saved if len(self._moments) > 1 else saved[np.newaxis]
                for moments, of_one in zip(self._moments, saved, strict=True):
                    setattr(moments[name], field, np.array(of_one))


class RewardNormaliser:
    """Divides rewards by the deviation of their discounted sums, for each agent by itself.

    The numbers are those of Gymnasium's vector wrapper ``NormalizeReward``, but for two things:
    they are clipped, and the sum of an episode that terminates includes what came before its last
    reward.
    """

    def __init__(self, num_envs: int, num_agents: int = 1) -> None:
        self._num_envs = num_envs
        self._moments = [RunningMeanStd() for _ in range(num_agents)]
        self._sums = np.zeros(num_envs)
        """The discounted sum of each copy's rewards, from the beginning of its episode."""
        self.frozen = False
        """Whether what is seen no longer changes the moments, as in evaluation."""

    def __call__(self, reward: np.ndarray, counted: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """The rewards [B] of a step, normalised; those that only reset are not ``counted`` [B]."""
        if not np.isfinite(reward).all():  # of ready vector environments, which nobody checks
            return reward
        self._sums = np.where(counted, REWARD_DISCOUNT * self._sums + reward, self._sums)
        parts = []
        for moments, sums, rewards, rows in zip(
            self._moments, *map(self._apart, (self._sums, reward, counted)), strict=True
        ):
            if rows.any() and not self.frozen:
                moments.update(sums[rows])
            parts.append(rewards / _deviation(moments))
        self._sums[ended] = 0.0
        return np.concatenate(parts).clip(-MAX_ABS, MAX_ABS).astype(np.float32)

    def _apart(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(len(self._moments), -1)

    def begin(self, copies: np.ndarray | bool = True) -> None:
        """Some copies [B] begin an episode, or all of them."""
        self._sums = np.where(copies, 0.0, self._sums)

    def forget(self, agents: np.ndarray) -> None:
        """Start from nothing for some agents, [P] bool."""
        for agent in agents.nonzero()[0]:
            self._moments[agent] = RunningMeanStd()
            self._apart(self._sums)[agent] = 0.0

    def state_dict(self) -> dict[str, Tensor]:
        """Everything it remembers, by name."""
        arrays = {
            key: np.stack([getattr(moments, field) for moments in self._moments])
            for key, field in _FIELDS.items()
        }
        arrays["sums"] = self._sums
        return {REWARD + key: torch.tensor(x, dtype=torch.float64) for key, x in arrays.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from what ``state_dict`` returned; another number of copies begins episodes."""
        state = dict(state)
        sums = state.pop(REWARD + "sums", None)
        expected = {k: x for k, x in self.state_dict().items() if k != REWARD + "sums"}
        check_moments(expected, state, "reward")
        for key, field in _FIELDS.items():
            for moments, of_one in zip(self._moments, state[REWARD + key].numpy(), strict=True):
                setattr(moments, field, np.array(of_one))
        self._sums = np.zeros(self._num_envs)
        if sums is not None and sums.shape == self._sums.shape and bool(sums.isfinite().all()):
            self._sums = sums.double().numpy().copy()


def check_moments(expected: dict[str, Tensor], state: dict[str, Tensor], what: str) -> None:
    """Raise if saved statistics are not those that are expected, or make no sense."""
    if {k: x.shape for k, x in expected.items()} != {k: x.shape for k, x in state.items()}:
        raise DiscorlError(
            f"the saved {what} statistics do not match these {what}s: they have "
            f"{sorted(state)}, not {sorted(expected)}"
        )
    for key, x in state.items():
        is_sound = bool(x.isfinite().all()) and (key.endswith(".mean") or bool((x >= 0).all()))
        if not is_sound:
            raise DiscorlError(f"the saved {what} statistics make no sense: {key}")


def _deviation(moments: RunningMeanStd) -> np.ndarray:
    return np.sqrt(moments.var + EPS)


_FIELDS = {"count": "count", "mean": "mean", "variance": "var"}
"""Names in a file, and those of Gymnasium."""
