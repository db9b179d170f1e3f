"""The meta-gradient in float64, where rounding hides nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from discorl.rules.format import params_to_arrays
from tests.builders import GOLDEN, double
from tests.golden_replay import agent_name, group, load, meta_gradient_inputs, through

TOLERANCE = 1e-7
"""Relative to the largest entry of each array. The reference has constants in float32."""


def relative_error(got: torch.Tensor, want: np.ndarray) -> float:
    expected = torch.from_numpy(want).reshape(got.shape)
    return float((got - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize(
    "name",
    [
        "meta_gradient_small",
        pytest.param("meta_gradient_disco103", marks=pytest.mark.disco103),
    ],
)
def test_equals_the_reference_in_float64(name: str) -> None:
    window, inputs, _ = meta_gradient_inputs(load(GOLDEN / f"{name}.npz"))
    want = load(GOLDEN / "float64" / f"{name}.npz")
    result = through(window, double(inputs), "plain")

    assert relative_error(result.loss, want["meta_loss"]) < TOLERANCE
    for param, array in group(want, "params_final").items():
        ours = agent_name(param).replace("second", "y")
        assert relative_error(result.life.agents.params[ours], array.T.copy()) < TOLERANCE, param
    compared = 0
    for param, got in params_to_arrays(result.gradient).items():
        full = torch.from_numpy(got).double()
        for part, of in (
            ("meta_grads", full),
            ("meta_grads_first32", full.flatten()[:32]),
            ("meta_grads_norm", full.norm()),
        ):
            if f"{part}/{param}" in want:
                assert relative_error(of, want[f"{part}/{param}"]) < TOLERANCE, (part, param)
                compared += 1
    assert compared >= len(result.gradient)
