"""Running normalisation of vector observations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from discorl.errors import DiscorlError

EPS = 1e-8
MAX_ABS = 10.0
"""Normalised numbers are clipped to this: what is rare at first looks extreme."""


@dataclass
class RunningMoments:
    """Mean and variance of everything seen, by entry of the vector."""

    count: float
    mean: np.ndarray
    variance: np.ndarray

    def update(self, x: np.ndarray) -> None:
        """Count a batch [B, D]."""
        total = self.count + len(x)
        delta = x.mean(0, dtype=np.float64) - self.mean
        squares = self.variance * self.count + x.var(0, dtype=np.float64) * len(x)
        squares += np.square(delta) * self.count * len(x) / total
        self.mean = self.mean + delta * len(x) / total
        self.variance = squares / total
        self.count = total

    def normalize(self, x: np.ndarray) -> np.ndarray:
        """(x - mean) / deviation."""
        scaled = (x - self.mean) / np.sqrt(self.variance + EPS)
        return scaled.clip(-MAX_ABS, MAX_ABS).astype(np.float32)


class ObservationNormaliser:
    """The moments of each vector of an observation."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self._moments = {k: RunningMoments(0.0, np.zeros(n), np.ones(n)) for k, n in sizes.items()}
        self.frozen = False
        """Whether what is seen no longer changes the moments, as in evaluation."""

    def observe(self, name: str, x: np.ndarray) -> None:
        """Count a batch, if it is a vector and the moments are not frozen."""
        if name in self._moments and not self.frozen and np.isfinite(x).all():
            self._moments[name].update(x)

    def __call__(self, name: str, x: np.ndarray) -> np.ndarray:
        """The batch normalised, if it is a vector."""
        return self._moments[name].normalize(x) if name in self._moments else x

    def state_dict(self) -> dict[str, Tensor]:
        """Everything it remembers, by name."""
        out = {}
        for name, moments in self._moments.items():
            for field in _FIELDS:
                key = f"{name or 'observation'}.{field}"
                value = getattr(moments, field)
                out[key] = torch.tensor(value, dtype=torch.float64, device="cpu")
        return out

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from what ``state_dict`` returned."""
        expected = self.state_dict()
        if {k: x.shape for k, x in expected.items()} != {k: x.shape for k, x in state.items()}:
            raise DiscorlError(
                "the saved observation statistics are not for these observations: they have "
                f"{sorted(state)}, not {sorted(expected)}"
            )
        for name, moments in self._moments.items():
            saved = {f: state[f"{name or 'observation'}.{f}"].cpu().numpy() for f in _FIELDS}
            moments.count = float(saved["count"])
            moments.mean, moments.variance = saved["mean"].copy(), saved["variance"].copy()


_FIELDS = ("count", "mean", "variance")
