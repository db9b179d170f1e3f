"""The meta-gradient in float64, where rounding hides nothing."""

from __future__ import annotations

import numpy as np
import torch

from discorl.rules.format import reference_name
from tests.builders import GOLDEN, double
from tests.golden_replay import agent_name, group, load, meta_gradient_inputs, through

TOLERANCE = 1e-9  # relative to the largest entry of each array


def relative_error(got: torch.Tensor, want: np.ndarray) -> float:
    expected = torch.from_numpy(want).reshape(got.shape)
    return float((got - expected).abs().max() / expected.abs().max())


def test_equals_the_reference_in_float64() -> None:
    window, inputs, _ = meta_gradient_inputs(load(GOLDEN / "meta_gradient_small.npz"))
    want = load(GOLDEN / "float64" / "meta_gradient_small.npz")
    result = through(window, double(inputs), "plain")

    assert relative_error(result.loss, want["meta_loss"]) < TOLERANCE
    for name, array in group(want, "params_final").items():
        ours = agent_name(name).replace("second", "y")
        assert relative_error(result.state.params[ours], array.T.copy()) < TOLERANCE, name
    gradients = group(want, "meta_grads")
    for name, got in result.gradient.items():
        array = gradients[reference_name(name)]
        matrix = array.reshape(array.shape[-2:]).T.copy() if array.ndim > 1 else array
        assert relative_error(got, matrix) < TOLERANCE, name
