"""The linear layer, with the gradient written out for kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from discorl.ops import native


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias. ``x`` [..., D], ``weight`` [E, D], ``bias`` [E] -> [..., E]"""
    if x.dim() == 2 and native.in_use(x, weight):
        return _Linear.apply(x, weight, bias)
    return nn.functional.linear(x, weight, bias)


def add_product(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """x + a @ b. ``a`` [N, D], ``b`` [D, E]; ``x`` [N, E], or [E] for every row. -> [N, E]"""
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        return x + torch.mm(a, b)  # as vmap does it, which first multiplies x by 1, though
    return torch.addmm(x, a, b)


class _Linear(Function):
    """Of rows [N, D]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.ops.discorl.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        (grad,), (of_x, of_weight, of_bias) = grads, ctx.needs_input_grad
        mm = torch.ops.discorl.mm
        return (
            mm(grad, weight) if of_x else None,
            mm(grad.T, x) if of_weight else None,
            grad.sum(0) if of_bias else None,
        )
