"""Element-wise squashing functions and their inverses."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from discorl.ops.roots import exact_sqrt

SIGNED_HYPERBOLIC_EPS = 1e-3


def signed_log1p(x: Tensor) -> Tensor:
    """sign(x) log(1 + |x|): compresses rewards and values before a network sees them."""
    return torch.sign(x) * torch.log1p(x.abs())


def signed_hyperbolic(x: Tensor, eps: float = SIGNED_HYPERBOLIC_EPS) -> Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x, the scale on which values are learnt."""
    return torch.sign(x) * (exact_sqrt(x.abs() + 1) - 1) + eps * x


def signed_parabolic(x: Tensor, eps: float = SIGNED_HYPERBOLIC_EPS) -> Tensor:
    """The inverse of ``signed_hyperbolic``.

    In float32 the difference below cancels to about four digits. So it does in the reference, whose
    rule was trained on the result: a more accurate form would differ from it past tolerance, and
    so would dividing by eps where the reference's compiler multiplies by the rounded 1 / eps.
    """
    root = exact_sqrt(1 + 4 * eps * (eps + 1 + x.abs()))
    root = root * 0.5 * _reciprocal(eps, x.dtype) - 0.5 / eps
    return torch.sign(x) * (root.square() - 1)


@cache
def _reciprocal(eps: float, dtype: torch.dtype) -> float:
    """1 / eps as it comes out in ``dtype``."""
    return float(torch.tensor(eps, dtype=dtype, device="cpu").reciprocal())
