"""Statistics against numbers worked by hand, and against scipy's as literals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from discorl.comparison.statistics import (
    aggregate,
    curve_band,
    interquartile_mean,
    mean,
    probability_of_improvement,
)

SAMPLES = 4000


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize(
    "scores, expected",
    [
        ([5.0], 5.0),
        ([1.0, 2.0, 9.0], 4.0),  # fewer than four: nothing is cut
        ([9.0, 1.0, 2.0, 4.0], 3.0),  # (2 + 4) / 2
        ([0.0, 100.0, 1.0, 2.0, 3.0, -50.0, 4.0, 5.0], 2.5),  # (1 + 2 + 3 + 4) / 4
        ([0.3, 1.7, -0.4, 2.5, 0.9, 4.1, 0.0], 1.08),  # scipy.stats.trim_mean(x, 0.25)
    ],
)
def test_interquartile_mean(scores: list[float], expected: float) -> None:
    assert interquartile_mean(np.array(scores)) == pytest.approx(expected, abs=1e-12)


def test_aggregate_pools_runs_and_tasks_as_scipy_does() -> None:
    tasks = [np.array([0.1, 0.4, 0.8, 0.35, 0.6]), np.array([0.9, 0.2, 0.7, 1.5, -2.0])]
    estimate = aggregate(tasks, SAMPLES, rng())
    assert estimate.value == pytest.approx(0.5083333333333333, abs=1e-12)  # trim_mean, axis=None
    assert estimate.low is not None and estimate.high is not None
    assert estimate.low < estimate.value < estimate.high


def test_the_interval_of_two_runs_is_known() -> None:
    """The resampled means are 0, 1/2 and 1 with chances 1/4, 1/2, 1/4."""
    estimate = aggregate([np.array([0.0, 1.0])], SAMPLES, rng())
    assert (estimate.value, estimate.low, estimate.high) == (0.5, 0.0, 1.0)


def test_the_interval_is_that_of_all_resamples() -> None:
    """Three runs have 27 resamples: their 2.5 % and 97.5 % quantiles."""
    runs = np.array([0.0, 1.0, 5.0])
    every = [np.mean(x) for x in itertools.product(runs, repeat=3)]
    estimate = aggregate([runs], 200_000, rng())
    low, high = np.quantile(np.repeat(every, 1000), [0.025, 0.975])
    assert (estimate.low, estimate.high) == (pytest.approx(low), pytest.approx(high))


def test_the_plain_mean_cuts_nothing() -> None:
    runs = np.array([0.0, 1.0, 2.0, 9.0])
    estimate = aggregate([runs], SAMPLES, rng(), mean)
    assert estimate.value == 3.0
    assert estimate.high is not None and estimate.high > 5.0


def test_tasks_are_resampled_apart() -> None:
    """Runs of a task are equal, so a stratified resample is always the same; a pooled one not."""
    estimate = aggregate([np.array([0.0, 0.0]), np.array([1.0, 1.0])], SAMPLES, rng())
    assert (estimate.value, estimate.low, estimate.high) == (0.5, 0.5, 0.5)


def test_one_run_has_no_interval() -> None:
    one = aggregate([np.array([0.7]), np.array([0.1, 0.2])], SAMPLES, rng())
    assert (one.low, one.high) == (None, None)
    beats = probability_of_improvement([np.array([2.0])], [np.array([1.0, 3.0])], SAMPLES, rng())
    assert (beats.value, beats.low, beats.high) == (0.5, None, None)


@pytest.mark.parametrize(
    "first, second, expected",
    [
        ([1.0, 1.0], [0.0, 0.0], 1.0),
        ([1.0, 1.0], [1.0, 1.0], 0.5),
        ([1.0, 1.0, 2.0], [1.0, 3.0], 2.0 / 6),  # mannwhitneyu(alternative="greater"): U = 2
        ([3.1, 2.2, 5.0, 4.4], [2.2, 1.0, 4.4, 0.5, 3.0], 16.0 / 20),  # likewise, U = 16
    ],
)
def test_probability_of_improvement(
    first: list[float], second: list[float], expected: float
) -> None:
    x, y = [np.array(first)], [np.array(second)]
    there = probability_of_improvement(x, y, SAMPLES, rng())
    back = probability_of_improvement(y, x, SAMPLES, rng())
    assert there.value == pytest.approx(expected, abs=1e-12)
    assert back.value == pytest.approx(1 - expected, abs=1e-12)
    assert there.low is not None and there.high is not None
    assert 0 <= there.low <= there.value <= there.high <= 1


def test_probability_of_improvement_is_a_mean_over_tasks() -> None:
    first = [np.array([1.0, 1.0]), np.array([0.0, 0.0, 0.0])]
    second = [np.array([0.0, 0.0]), np.array([0.0, 0.0])]
    estimate = probability_of_improvement(first, second, SAMPLES, rng())
    assert (estimate.value, estimate.low, estimate.high) == (0.75, 0.75, 0.75)


def test_a_band_is_the_interval_at_each_point(monkeypatch: pytest.MonkeyPatch) -> None:
    curves = np.random.default_rng(1).normal(size=(5, 7))
    middle, low, high = curve_band(curves, SAMPLES, rng())
    assert low is not None and high is not None
    for point in range(7):
        estimate = aggregate([curves[:, point]], SAMPLES, rng())
        expected = (estimate.value, estimate.low, estimate.high)
        assert (middle[point], low[point], high[point]) == pytest.approx(expected, abs=1e-12)
    monkeypatch.setattr("discorl.comparison.statistics.MAX_RESAMPLED", 1)
    for whole, blocks in zip((middle, low, high), curve_band(curves, SAMPLES, rng()), strict=True):
        np.testing.assert_array_equal(whole, blocks)


def test_a_band_of_one_run_is_its_curve() -> None:
    middle, low, high = curve_band(np.array([[1.0, 2.0, 4.0]]), SAMPLES, rng())
    assert middle.tolist() == [1.0, 2.0, 4.0]
    assert low is high is None
