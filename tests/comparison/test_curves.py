"""Curves, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from discorl.comparison.curves import Curve, area, common_range, final_score


def curve(*points: tuple[float, float]) -> Curve:
    x, y = np.array(points, dtype=np.float64).T
    return Curve(x, y)


def test_the_common_range_is_where_all_are_known() -> None:
    assert common_range([curve((1, 0), (9, 0)), curve((3, 0), (7, 0))]) == (3.0, 7.0)


def test_resampling_draws_straight_lines() -> None:
    grid = np.array([0.0, 1.0, 2.0, 3.0])
    assert curve((0, 0), (2, 4), (3, 0)).at(grid).tolist() == [0.0, 2.0, 4.0, 0.0]


def test_area_is_the_mean_height() -> None:
    c = curve((0, 0), (2, 4), (4, 4))
    assert area(c, 0, 4) == pytest.approx(3.0)  # (4 + 8) / 4
    assert area(c, 1, 3) == pytest.approx(3.5)  # (3 + 4) / 2: ends fall between points
    assert area(c, 2, 2) == 4.0


def test_the_final_score_is_a_mean_over_the_last_tenth() -> None:
    c = curve((80, 0), (90, 10), (95, 1), (100, 3), (110, 50))
    assert final_score(c, 100) == 2.0
    assert final_score(c, 105) == 2.0  # those above 94.5
    assert final_score(curve((0, 0), (200, 20)), 100) == 10.0  # no point there: interpolated
