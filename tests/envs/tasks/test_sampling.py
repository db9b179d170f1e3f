from __future__ import annotations

import math

import pytest
import torch

from discorl.envs.tasks import sampling as draw
from discorl.errors import DiscorlError
from tests.builders import rng


def test_fixed_values_stay_what_they_are() -> None:
    for make in (draw.uniform, draw.log_uniform):
        assert make(0.3, (3,), rng()).tolist() == torch.full((3,), 0.3).tolist()
        assert make(0.0, (3,), rng()).tolist() == [0, 0, 0]
    assert draw.integers(7, (2, 2), rng()).tolist() == [[7, 7], [7, 7]]
    assert draw.log_integers(7, (2,), rng()).tolist() == [7, 7]


def test_ranges_are_filled() -> None:
    x = draw.uniform((-1.0, 3.0), (10_000,), rng())
    assert -1 <= x.min() < -0.99 and 2.99 < x.max() <= 3
    assert abs(x.mean() - 1) < 0.05
    counts = draw.integers((2, 5), (8000,), rng()).bincount()
    assert counts[:2].tolist() == [0, 0] and len(counts) == 6
    assert counts[2:].min() > 1800


def test_logarithmic_ranges_have_as_much_in_every_decade() -> None:
    x = draw.log_uniform((0.001, 1.0), (9000,), rng())
    assert x.min() >= 0.001 and x.max() <= 1
    for low in (0.001, 0.01, 0.1):
        assert 2800 < ((low <= x) & (x < 10 * low)).sum() < 3200
    whole = draw.log_integers((20, 100), (4000,), rng())
    assert (whole.min(), whole.max(), whole.dtype) == (20, 100, torch.long)
    assert abs(whole.double().log().mean() - math.log(20 * 100) / 2) < 0.03


def test_permutations() -> None:
    orders = draw.shuffle(True, 600, 3, rng())
    assert orders is not None
    assert torch.equal(orders.sort(1).values, torch.arange(3).expand(600, 3))
    assert len(orders.unique(dim=0)) == 6


@pytest.mark.parametrize("bounds", [-0.1, 1.1, (0.5, 0.4), (0.5, 1.2), float("nan")])
def test_bounds_out_of_order_or_out_of_reach(bounds: draw.Range) -> None:
    with pytest.raises(DiscorlError, match=r"chance must be a number from 0 to 1"):
        draw.check_range("chance", bounds, 0, 1)
    with pytest.raises(DiscorlError, match=r"chance must be a number from 0 to 1"):
        draw.check_probability("chance", bounds)


def test_a_logarithmic_range_cannot_begin_at_nothing() -> None:
    with pytest.raises(DiscorlError, match="its range must start above 0"):
        draw.check_probability("chance", (0.0, 0.5))
    draw.check_probability("chance", 0.0)


def test_counts() -> None:
    draw.check_count("arms", 2, 2, 5)
    with pytest.raises(DiscorlError, match="arms must be from 2 to 5, not 6"):
        draw.check_count("arms", 6, 2, 5)
