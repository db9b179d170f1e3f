"""Convolutions and what surrounds them in networks, with the gradient written out for kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from discorl.ops import native

SHALLOW = 8
"""Numbers that a stride steps over, below which ours has a kernel for first layers only."""
MIN_IMAGES = 16
"""Fewer are not worth what ours first makes of the weights."""


def by_kernel(x: Tensor, weight: Tensor, stride: int, padding: int, *, is_first: bool) -> bool:
    """Whether ours has such a convolution: 2 or 3 strides wide, with padding at stride 1 only."""
    _, channels, height, width = weight.shape
    fits = height == width and height in (2 * stride, 3 * stride)
    fits = fits and padding <= (1 if stride == 1 else 0)
    if channels * stride**2 < SHALLOW:
        fits = fits and is_first and (stride, height) == (1, 3)
    fits = fits and native.in_use(weight) and (x.dtype == torch.uint8 or native.in_use(x))
    # The number of images comes last: a policy that is exported must not depend on it.
    return fits and torch.ops.discorl.has_convolutions() and len(x) >= MIN_IMAGES


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    stride: int,
    padding: int,
    *,
    relu_first: bool = False,
    plus: Tensor | None = None,
    then_relu: bool = False,
    then_pool: bool = False,
) -> Tensor:
    """The convolution of ``x`` [N, C, H, W], or of its relu; then one thing more at most.

    ``plus`` is added, or relu or IMPALA's pooling follows, which halves the image. Where
    ``by_kernel`` says so, ``x`` may be bytes, which stand for numbers from 0 to 1.
    """
    assert (plus is not None) + then_relu + then_pool <= 1
    is_first = not (x.requires_grad or relu_first or plus is not None)
    if by_kernel(x, weight, stride, padding, is_first=is_first):
        how = stride, padding, relu_first, then_relu, then_pool
        return _Convolution.apply(x, weight, bias, plus, *how)
    out = nn.functional.conv2d(torch.relu(x) if relu_first else x, weight, bias, stride, padding)
    if then_pool:
        return nn.functional.max_pool2d(out, 3, 2, padding=1)
    out = out if plus is None else plus + out
    return torch.relu(out) if then_relu else out


class _Convolution(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        plus: Tensor | None,
        stride: int,
        padding: int,
        relu_first: bool,
        then_relu: bool,
        then_pool: bool,
    ) -> Tensor:
        out, winners = torch.ops.discorl.conv2d(
            x, weight, bias, plus, stride, padding, relu_first, then_relu, then_pool
        )
        ctx.save_for_backward(x, weight, out if then_relu else None, winners if then_pool else None)
        ctx.how = stride, padding, relu_first
        return out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        x, weight, out, winners = ctx.saved_tensors
        (grad,), (of_x, _, _, of_plus, *_) = grads, ctx.needs_input_grad
        rows = native.rows_with_gradient(len(grad))
        to_x, to_weight, to_bias = torch.ops.discorl.conv2d_backward(
            grad, x, weight, out, winners, rows, *ctx.how, of_x
        )
        to_plus = grad if of_plus else None
        return to_x if of_x else None, to_weight, to_bias, to_plus, *[None] * 5
