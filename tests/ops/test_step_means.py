from __future__ import annotations

import torch

from discorl.ops.moments import init_moments, update_moments
from discorl.ops.step_means import live_mean, live_mean_of_steps
from tests.builders import assert_bit_equal

DEAD = torch.tensor([[False, True], [False, False], [True, True]])


def test_dead_steps_do_not_count() -> None:
    x = torch.tensor([[1.0, 100.0], [2.0, 6.0]])
    assert live_mean(x, DEAD).item() == 3
    assert live_mean(x, None).item() == x.mean().item()
    wide = torch.stack([x, 10 * x], -1)
    assert live_mean(wide, DEAD).item() == 16.5
    assert live_mean_of_steps(wide, DEAD).tolist() == [3, 30]
    assert live_mean_of_steps(wide, None).tolist() == wide.mean((0, 1)).tolist()


def test_nothing_alive_is_zero_and_not_nan() -> None:
    assert live_mean(torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool)).item() == 0


def test_moments_of_live_steps() -> None:
    x = torch.tensor([[1.0, 100.0], [2.0, 6.0]])
    marked = update_moments(init_moments(), x, 0.5, is_dead=DEAD)
    assert_bit_equal(marked, update_moments(init_moments(), torch.tensor([1.0, 2.0, 6.0]), 0.5))
