"""Learning curves as functions of a common axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from discorl.comparison.statistics import Array

FINAL_SHARE = 0.1
"""The final score is the mean over this last share of the budget."""


@dataclass(frozen=True)
class Curve:
    """Points of one run, with ``x`` increasing."""

    x: Array
    y: Array

    def at(self, points: Array) -> Array:
        """The height at each point, along straight lines between the curve's own."""
        return np.interp(points, self.x, self.y)


def common_range(curves: Sequence[Curve]) -> tuple[float, float]:
    """Where all curves are known: from the last start to the first end."""
    start = max(float(c.x[0]) for c in curves)
    end = min(float(c.x[-1]) for c in curves)
    return start, end


def area(curve: Curve, start: float, end: float) -> float:
    """Area under the curve from ``start`` to ``end``, divided by the width: the mean height."""
    if end <= start:
        return float(curve.at(np.asarray(end)))
    inside = (curve.x > start) & (curve.x < end)
    x = np.concatenate([[start], curve.x[inside], [end]])
    return float(np.trapezoid(curve.at(x), x) / (end - start))


def final_score(curve: Curve, end: float) -> float:
    """Mean of the points in the last tenth of the budget, or else the value at its end."""
    last = (curve.x > end * (1 - FINAL_SHARE)) & (curve.x <= end)
    if last.any():
        return float(curve.y[last].mean())
    return float(curve.at(np.asarray(end)))
