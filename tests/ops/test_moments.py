from __future__ import annotations

import pytest
import torch

from discorl.ops.moments import init_moments, normalize, update_moments


def test_two_updates_by_hand() -> None:
    """Decay 1/2. (1, 3) has mean 2 and mean square 5, (6, 6) has 6 and 36.

    After both, the older has weight 1/4, the newer 1/2, and 1/4 is still on the start:
    mean = (2/4 + 6/2) / (3/4) = 14/3, mean square = (5/4 + 36/2) / (3/4) = 77/3.
    """
    first = update_moments(init_moments(), torch.tensor([1.0, 3.0]), decay=0.5)
    assert (first.mean, first.mean_square, first.decay_product) == (1.0, 2.5, 0.5)
    # Debiased: mean 2, variance 5 - 4 = 1.
    torch.testing.assert_close(normalize(first, torch.tensor([2.0, 5.0])), torch.tensor([0.0, 3.0]))

    second = update_moments(first, torch.tensor([6.0, 6.0]), decay=0.5)
    assert (second.mean, second.mean_square, second.decay_product) == (3.5, 19.25, 0.25)
    mean, variance = 14 / 3, 77 / 3 - (14 / 3) ** 2
    x = torch.tensor([0.0, 10.0])
    torch.testing.assert_close(normalize(second, x), (x - mean) / variance**0.5)
    torch.testing.assert_close(normalize(second, x, subtract_mean=False), x / variance**0.5)


def test_default_decay() -> None:
    moments = update_moments(init_moments(), torch.tensor(5.0))
    assert moments.decay_product.item() == pytest.approx(0.99)
    assert moments.mean.item() == pytest.approx(0.05)


def test_a_constant_has_no_deviation_to_divide_by() -> None:
    """Variance 0 leaves sqrt(1e-12) + 1e-6."""
    moments = update_moments(init_moments(), torch.full((4,), 3.0), decay=0.5)
    x = torch.tensor([3.0 + 2e-6], dtype=torch.float64)
    assert normalize(moments, x).item() == pytest.approx(1.0)
    zeros = update_moments(init_moments(), torch.zeros(4))
    assert torch.equal(normalize(zeros, torch.zeros(3)), torch.zeros(3))


def test_processes_are_averaged() -> None:
    moments = update_moments(init_moments(), torch.ones(4), 0.5, across=lambda x: x * 3)
    assert (moments.mean, moments.mean_square) == (1.5, 1.5)
