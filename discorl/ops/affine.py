"""The linear layer, with the gradient written out for kernels and for factors that are rounded."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from discorl.ops import native


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias. ``x`` [..., D], ``weight`` [E, D], ``bias`` [E] -> [..., E]"""
    by_kernel, is_rounded = native.in_use(x, weight), native.rounds(weight.shape[1])
    if native.of_agents(x, weight, *([] if bias is None else [bias])):
        return torch.ops.discorl.agents_linear(x, weight, bias)
    if not (by_kernel or is_rounded) or x.dim() < 2:
        return nn.functional.linear(x, weight, bias)
    out = _Linear.apply(x.flatten(0, -2), weight, bias, by_kernel, is_rounded)
    return out.unflatten(0, x.shape[:-1])


def add_product(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """x + a @ b. ``a`` [N, D], ``b`` [D, E]; ``x`` [N, E], or [E] for every row. -> [N, E]"""
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        if native.of_agents(x, a, b):
            return torch.ops.discorl.agents_add_product(x, a, b)
        return x + torch.mm(a, b)  # as vmap does it, which first multiplies x by 1, though
    return torch.addmm(x, a, b)


class _Linear(Function):
    """Of rows [N, D]. If a layer's factors are rounded, so are those of its gradients."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, by_kernel: bool, is_rounded: bool
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.how = by_kernel, is_rounded
        if by_kernel:
            return torch.ops.discorl.linear(x, weight, bias, is_rounded)
        out = _product(x, weight.T, *ctx.how)
        return out if bias is None else out + bias

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        (grad,), (of_x, of_weight, of_bias, *_) = grads, ctx.needs_input_grad
        by_kernel, is_rounded = ctx.how
        rows = native.rows_with_gradient(len(grad)) if by_kernel else None
        if rows is None:
            to_x = _product(grad, weight, *ctx.how) if of_x else None
            to_weight = _product(grad.T, x, *ctx.how) if of_weight else None
        else:
            mm_of_rows, mm_over_rows = torch.ops.discorl.mm_of_rows, torch.ops.discorl.mm_over_rows
            to_x = mm_of_rows(grad, weight, rows, is_rounded) if of_x else None
            to_weight = mm_over_rows(grad, x, rows, is_rounded) if of_weight else None
        return to_x, to_weight, grad.sum(0) if of_bias else None, None, None


def _product(a: Tensor, b: Tensor, by_kernel: bool, is_rounded: bool) -> Tensor:
    if by_kernel:
        return torch.ops.discorl.mm(a, b, is_rounded)
    if not is_rounded:
        return a @ b
    a, b = a.to(torch.bfloat16), b.to(torch.bfloat16)
    if a.device.type == "cuda":
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()  # the same numbers, at the speed of single precision or less
