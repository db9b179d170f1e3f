from __future__ import annotations

import math

import pytest
import torch

from discorl.ops.squash import signed_hyperbolic, signed_log1p, signed_parabolic


def test_by_hand() -> None:
    x = torch.tensor([-3.0, 0.0, 8.0], dtype=torch.float64)
    hyperbolic = torch.tensor([-1.003, 0.0, 2.008], dtype=torch.float64)
    torch.testing.assert_close(signed_hyperbolic(x), hyperbolic)
    torch.testing.assert_close(signed_parabolic(hyperbolic), x)
    logs = torch.tensor([-math.log(4), 0.0, math.log(9)], dtype=torch.float64)
    torch.testing.assert_close(signed_log1p(x), logs)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-9), (torch.float32, 1e-3)])
def test_the_pair_is_invertible(dtype: torch.dtype, tolerance: float) -> None:
    """In float32 to about four digits: the formula cancels, see its docstring."""
    x = torch.cat([torch.linspace(-5, 5, 101), torch.linspace(-9e4, 9e4, 100)]).to(dtype)
    back = signed_parabolic(signed_hyperbolic(x))
    assert ((back - x).abs() <= tolerance * (1 + x.abs())).all()
    y = torch.linspace(-300, 300, 121, dtype=dtype)
    there = signed_hyperbolic(signed_parabolic(y))
    assert ((there - y).abs() <= tolerance * (1 + y.abs())).all()


@pytest.mark.parametrize("fn", [signed_log1p, signed_hyperbolic, signed_parabolic])
def test_odd_and_increasing(fn) -> None:
    x = torch.linspace(-50, 50, 201, dtype=torch.float64)
    y = fn(x)
    torch.testing.assert_close(fn(-x), -y)
    assert (y.diff() > 0).all()
