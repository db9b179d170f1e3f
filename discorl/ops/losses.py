"""Losses of categorical predictions, with the gradient written out.

Each is a loss *for the prediction*: in first order the target is a constant. The gradient,
softmax(prediction) - target, is itself differentiable in both, so a meta-gradient follows the
target through it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from discorl.ops import native
from discorl.ops.categorical import two_hot_position

VALUES_PER_BLOCK = 512 * 600
"""Values that are worked through at a time, so that all passes over them stay in the cache."""


def kl_loss(target_logits: Tensor, logits: Tensor) -> Tensor:
    """KL(softmax(target) || softmax(logits)) over the last axis, a loss for ``logits``."""
    return _KLLoss.apply(logits, target_logits)[0]


def two_hot_loss(logits: Tensor, x: Tensor, max_abs: float) -> Tensor:
    """-sum two_hot(x) log_softmax(logits), a loss for ``logits``. [..., K], [...] -> [...]"""
    lower, weight_upper = two_hot_position(x.detach(), logits.shape[-1], max_abs)
    index = torch.stack([lower, lower + 1], -1)
    weights = torch.stack([1 - weight_upper, weight_upper], -1)
    return _SparseCrossEntropy.apply(logits, index, weights)[0]


class _RowLoss(Function):
    """A loss of each row [..., K], and its gradient in the prediction, kept in case it is needed.

    Rows are independent, so a batch dimension of vmap is just more rows.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, slope = output
        ctx.mark_non_differentiable(slope)
        ctx.set_materialize_grads(False)  # no zeros for the slope, which is never differentiated
        # Where a meta-gradient follows the target, the gradient is computed from it again.
        follows_target = any(x.requires_grad for x in inputs[1:])
        ctx.save_for_backward(*inputs, None if follows_target else slope)

    @classmethod
    def vmap_rows(cls, info: Any, in_dims: Any, *inputs: Tensor) -> tuple[Any, tuple[int, int]]:
        """The rule for vmap."""
        stacked = (
            x.expand(info.batch_size, *x.shape) if d is None else x.movedim(d, 0)
            for x, d in zip(inputs, in_dims, strict=True)
        )
        return cls.apply(*stacked), (0, 0)


class _KLLoss(_RowLoss):
    """Inputs: logits of the prediction, logits of the target."""

    @staticmethod
    def forward(logits: Tensor, target_logits: Tensor) -> tuple[Tensor, Tensor]:
        if native.apply_to(logits, target_logits):
            return _of_rows(torch.ops.discorl.kl_rows, logits, target_logits)

        def block(slope: Tensor, x: Tensor, t: Tensor) -> Tensor:
            q, p = torch.softmax(x, -1, out=slope), torch.softmax(t, -1)
            difference = _below_largest(t).sub_(_below_largest(x)).mul_(p).sum(-1)
            loss = difference + _log_normaliser(q) - _log_normaliser(p)
            slope.sub_(p)
            return loss

        return _in_blocks(block, logits, target_logits)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None]:
        logits, target_logits, slope = ctx.saved_tensors
        if grads[0] is None:
            return None, None
        if slope is None or torch.is_grad_enabled():
            slope = torch.softmax(logits, -1) - torch.softmax(target_logits, -1)
        return grads[0].unsqueeze(-1) * slope, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Tensor) -> Any:
        return _KLLoss.vmap_rows(info, in_dims, *inputs)


class _SparseCrossEntropy(_RowLoss):
    """Inputs: logits, and the few classes with weight in the target: index and weights [..., M]."""

    @staticmethod
    def forward(logits: Tensor, index: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        if native.apply_to(logits, weights):
            return _of_rows(torch.ops.discorl.cross_entropy_rows, logits, index, weights)

        def block(slope: Tensor, x: Tensor, i: Tensor, w: Tensor) -> Tensor:
            q = torch.softmax(x, -1, out=slope)
            below = x.amax(-1, keepdim=True) - x.gather(-1, i)
            loss = ((_log_normaliser(q).unsqueeze(-1) + below) * w).sum(-1)
            slope.scatter_add_(-1, i, -w)
            return loss

        return _in_blocks(block, logits, index, weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None]:
        logits, index, weights, slope = ctx.saved_tensors
        if grads[0] is None:
            return None, None, None
        if slope is None or torch.is_grad_enabled():
            slope = torch.softmax(logits, -1).scatter_add(-1, index, -weights)
        return grads[0].unsqueeze(-1) * slope, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Tensor) -> Any:
        return _SparseCrossEntropy.vmap_rows(info, in_dims, *inputs)


def _below_largest(logits: Tensor) -> Tensor:
    """Logits less the largest of their row: logits may be large, the loss is not, and differences
    of large numbers would cost it digits."""
    return logits - logits.amax(-1, keepdim=True)


def _log_normaliser(probabilities: Tensor) -> Tensor:
    """log sum exp of logits below their largest, from their softmax: its largest entry cannot
    underflow."""
    return -probabilities.amax(-1).log()


def _of_rows(
    kernel: Callable[..., tuple[Tensor, Tensor]], *inputs: Tensor
) -> tuple[Tensor, Tensor]:
    """Losses and slopes of all rows, by a kernel for rows."""
    losses, slopes = kernel(*(x.flatten(0, -2) for x in inputs))
    return losses.reshape(inputs[0].shape[:-1]), slopes.reshape(inputs[0].shape)


def _in_blocks(block: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Losses and slopes of all rows: ``block(slope, *inputs)`` fills in those of some [R, K]."""
    leading, rows = inputs[0].shape[:-1], [x.flatten(0, -2) for x in inputs]
    slopes = torch.empty_like(rows[0])
    # A multiple of 64: vectors of numbers, which end with a block, then end where they always did.
    num_rows = max(64, VALUES_PER_BLOCK // inputs[0].shape[-1] // 64 * 64)
    losses = [
        block(*parts) for parts in zip(*(x.split(num_rows) for x in (slopes, *rows)), strict=True)
    ]
    return torch.cat(losses).reshape(leading), slopes.reshape(inputs[0].shape)
