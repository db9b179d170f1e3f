"""Running normalisation of vector observations."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium.wrappers.utils import RunningMeanStd
from torch import Tensor

from discorl.errors import DiscorlError, EnvFailure

EPS = 1e-8
MAX_ABS = 10.0
"""Normalised numbers are clipped to this: what is rare at first looks extreme."""


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
        expected = self.state_dict()
        if {k: x.shape for k, x in expected.items()} != {k: x.shape for k, x in state.items()}:
            raise DiscorlError(
                "the saved observation statistics do not match these observations: they have "
                f"{sorted(state)}, not {sorted(expected)}"
            )
        for key, x in state.items():
            is_sound = bool(x.isfinite().all()) and (key.endswith(".mean") or bool((x >= 0).all()))
            if not is_sound:
                raise DiscorlError(f"the saved observation statistics make no sense: {key}")
        for name in self._sizes:
            for key, field in _FIELDS.items():
                saved = state[f"{name or 'observation'}.{key}"].cpu().numpy()
                saved = saved if len(self._moments) > 1 else saved[np.newaxis]
                for moments, of_one in zip(self._moments, saved, strict=True):
                    setattr(moments[name], field, np.array(of_one))


def _deviation(moments: RunningMeanStd) -> np.ndarray:
    return np.sqrt(moments.var + EPS)


_FIELDS = {"count": "count", "mean": "mean", "variance": "var"}
"""Names in a file, and those of Gymnasium."""
