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


class ObservationNormaliser:
    """The moments of each vector of an observation."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self._moments = {name: RunningMeanStd(0.0, (size,)) for name, size in sizes.items()}
        self.frozen = False
        """Whether what is seen no longer changes the moments, as in evaluation."""

    def check(self, name: str, x: np.ndarray, rows: np.ndarray | None = None) -> None:
        """Raise if a vector has infinities, which the clip would hide, or NaN.

        ``rows`` says which of the batch matter; by default all do.
        """
        if name not in self._moments or np.isfinite(x).all():
            return
        bad = ~np.isfinite(x).all(1) & (True if rows is None else rows)
        if bad.any():
            raise EnvFailure(
                f"environment {int(bad.argmax())} sent observations that are NaN or infinite: "
                "fix the environment, or wrap it to clip or replace them"
            )

    def observe(self, name: str, x: np.ndarray) -> None:
        """Count a batch that passed the check, if it is a vector and the moments are not frozen."""
        if name in self._moments and not self.frozen:
            self._moments[name].update(x.astype(np.float64))

    def __call__(self, name: str, x: np.ndarray) -> np.ndarray:
        """The batch normalised, if it is a vector."""
        if name not in self._moments:
            return x
        moments = self._moments[name]
        scaled = (x - moments.mean) / np.sqrt(moments.var + EPS)
        return scaled.clip(-MAX_ABS, MAX_ABS).astype(np.float32)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything it remembers, by name."""
        return {
            f"{name or 'observation'}.{key}": torch.tensor(
                getattr(moments, field), dtype=torch.float64, device="cpu"
            )
            for name, moments in self._moments.items()
            for key, field in _FIELDS.items()
        }

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
        for name, moments in self._moments.items():
            for key, field in _FIELDS.items():
                saved = state[f"{name or 'observation'}.{key}"]
                setattr(moments, field, saved.cpu().numpy().copy())


_FIELDS = {"count": "count", "mean": "mean", "variance": "var"}
"""Names in a file, and those of Gymnasium."""
