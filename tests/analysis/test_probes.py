"""Probes on data with and without information."""

from __future__ import annotations

import pytest
import torch

from discorl.analysis.probes import LARGE, SMALL, ProbeSize, cross_validate
from tests.builders import rng


def some_data(num_rows: int = 1500, size: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """As many rows as an analysis has: with fewer, probes learn more of the noise by heart."""
    x = torch.randn(num_rows, size, generator=rng())
    return x, torch.arange(num_rows) % 20


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_what_is_there_is_found_and_what_is_not_is_not(size: ProbeSize) -> None:
    x, groups = some_data()
    noise = torch.randn(len(x), generator=rng(1))
    wanted = torch.stack(
        [
            300 + 20 * x[:, 0] * x[:, 1],  # in no single input, and on a scale of its own
            (x[:, 0] + x[:, 1] > 0).float(),
            noise,
            (noise > 0.8).float(),
        ],
        1,
    )
    product, side, nothing, rare = cross_validate(
        x, wanted, [False, True, False, True], groups, size
    )
    assert product.value > 0.8 and product.baseline == 0
    assert side.value > 0.93 and 0.45 < side.baseline < 0.6
    assert -0.35 < nothing.value < 0.05
    majority = 1 - float(wanted[:, 3].mean())
    assert rare.baseline == pytest.approx(majority) and majority > 0.7
    assert rare.value < rare.baseline + 0.02


def test_folds_keep_groups_together() -> None:
    """The answer is a number of each group's own: known in training, no help in another group."""
    num_groups = 40
    groups = torch.arange(num_groups).repeat_interleave(25)
    code = torch.randn(num_groups, 6, generator=rng())[groups]
    answer = torch.randn(num_groups, generator=rng(1))[groups]
    (honest,) = cross_validate(code, answer[:, None], [False], groups, SMALL)
    (leaky,) = cross_validate(code, answer[:, None], [False], torch.arange(len(code)), SMALL)
    assert leaky.value > 0.9
    assert honest.value < 0.1


def test_unknown_targets_are_left_out() -> None:
    x, groups = some_data()
    wanted = x[:, :1].clone()
    wanted[::2] = torch.nan
    (score,) = cross_validate(x, wanted, [False], groups, SMALL)
    assert score.value > 0.95
    again = cross_validate(x, wanted, [False], groups, SMALL)
    assert again == [score], "equal seeds give equal scores"


def test_inputs_that_hardly_differ() -> None:
    """As a newborn network's do; the scale of inputs says nothing."""
    x, groups = some_data()
    (score,) = cross_validate(-6.4 + 1e-3 * x, x[:, :1], [False], groups, SMALL)
    assert score.value > 0.95
