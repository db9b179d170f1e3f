"""Statistics of few runs, after Agarwal et al., "Deep RL at the edge of the statistical precipice".

Scores come as one array of runs for each task. Tasks may have different numbers of runs: each is a
stratum of its own, and is resampled by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

CONFIDENCE = 0.95
TRIMMED = 0.25
"""Share cut from either end by the interquartile mean."""
MAX_RESAMPLED = 2_000_000
"""Numbers resampled at a time, so that memory stays small however long the curves are."""


@dataclass(frozen=True)
class Estimate:
    """A statistic and its confidence interval, which needs two runs of every task."""

    value: float
    low: float | None = None
    high: float | None = None


def interquartile_mean(scores: Array) -> Array:
    """Mean of the middle half along the last axis; fewer than four values are all kept."""
    count = scores.shape[-1]
    cut = int(TRIMMED * count)
    return np.sort(scores, axis=-1)[..., cut : count - cut].mean(axis=-1)


def mean(scores: Array) -> Array:
    """Mean along the last axis."""
    return scores.mean(axis=-1)


def aggregate(
    tasks: Sequence[Array],
    samples: int,
    rng: np.random.Generator,
    statistic: Callable[[Array], Array] = interquartile_mean,
) -> Estimate:
    """Interquartile mean over runs x tasks, with a stratified bootstrap interval."""
    value = float(statistic(np.concatenate(tasks)))
    if min(map(len, tasks)) < 2:  # one run alone is always drawn again
        return Estimate(value)
    resampled = [task[_indices(len(task), samples, rng)] for task in tasks]
    low, high = _interval(statistic(np.concatenate(resampled, axis=1)))
    return Estimate(value, float(low), float(high))


def probability_of_improvement(
    first: Sequence[Array], second: Sequence[Array], samples: int, rng: np.random.Generator
) -> Estimate:
    """Chance that a run of ``first`` beats one of ``second``: a mean over tasks; ties count half.

    For each task it is the Mann-Whitney U statistic divided by the number of pairs. Both sides are
    resampled, each by itself.
    """
    pairs = list(zip(first, second, strict=True))
    value = float(np.mean([_share_of_wins(x, y) for x, y in pairs]))
    if min(map(len, [*first, *second])) < 2:
        return Estimate(value)
    by_task = []
    for x, y in pairs:
        x_resampled = x[_indices(len(x), samples, rng)]
        y_resampled = y[_indices(len(y), samples, rng)]
        by_task.append(_share_of_wins(x_resampled, y_resampled))
    low, high = _interval(np.mean(by_task, axis=0))
    return Estimate(value, float(low), float(high))


def curve_band(
    curves: Array, samples: int, rng: np.random.Generator
) -> tuple[Array, Array | None, Array | None]:
    """Interquartile mean of runs at each point of their curves [runs, points], with its interval.

    The same resampled runs serve all points, because a run is one draw from start to end.
    """
    middle = interquartile_mean(curves.T)
    num_runs, num_points = curves.shape
    if num_runs < 2:
        return middle, None, None
    indices = _indices(num_runs, samples, rng)
    width = max(1, MAX_RESAMPLED // (samples * num_runs))
    bounds = []
    for start in range(0, num_points, width):
        block = curves[:, start : start + width].T  # [points, runs]
        bounds.append(_interval(interquartile_mean(block[:, indices]), axis=1))
    low, high = (np.concatenate(side) for side in zip(*bounds, strict=True))
    return middle, low, high


def _share_of_wins(x: Array, y: Array) -> Array:
    """[..., N] against [..., M]."""
    difference = x[..., :, None] - y[..., None, :]
    return (0.5 * (np.sign(difference) + 1.0)).mean(axis=(-2, -1))


def _indices(count: int, samples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return rng.integers(count, size=(samples, count))


def _interval(values: Array, axis: int = 0) -> tuple[Array, Array]:
    """Percentile interval of bootstrap ``values``."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, [tail, 1 - tail], axis=axis)
    return low, high
