"""Losses of categorical predictions, with the gradient written out.

Each is a loss *for the prediction*: in first order the target is a constant. The gradient,
softmax(prediction) - target, is itself differentiable in both, so a meta-gradient follows the
target through it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from discorl.ops.categorical import two_hot_position

ROWS_PER_BLOCK = 384
"""Rows that are worked through at a time, so that all passes over them stay in the cache."""


def kl_loss(target_logits: Tensor, logits: Tensor) -> Tensor:
    """KL(softmax(target) || softmax(logits)) over the last axis, a loss for ``logits``."""
    return _blocks(_KLLoss.apply, target_logits, logits)


def two_hot_loss(logits: Tensor, x: Tensor, max_abs: float) -> Tensor:
    """-sum two_hot(x) log_softmax(logits), a loss for ``logits``. [..., K], [...] -> [...]"""
    lower, weight_upper = two_hot_position(x.detach(), logits.shape[-1], max_abs)
    index = torch.stack([lower, lower + 1], -1)
    weights = torch.stack([1 - weight_upper, weight_upper], -1)
    return _blocks(_SparseCrossEntropy.apply, logits, index, weights)


def _blocks(fn: Any, *inputs: Tensor) -> Tensor:
    """Apply a function of rows [R, ...] to inputs [..., K] block by block."""
    leading = inputs[0].shape[:-1]
    rows = [x.reshape(-1, x.shape[-1]) for x in inputs]
    blocks = zip(*(x.split(ROWS_PER_BLOCK) for x in rows), strict=True)
    return torch.cat([fn(*block)[0] for block in blocks]).reshape(leading)


class _KLLoss(Function):
    """The loss of each row, and its gradient in the prediction, kept in case it is asked for."""

    generate_vmap_rule = True

    @staticmethod
    def forward(target_logits: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        log_p = torch.log_softmax(target_logits, -1)
        log_q = torch.log_softmax(logits, -1)
        p = log_p.exp()
        return (p * (log_p - log_q)).sum(-1), log_q.exp() - p

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        target_logits, logits = inputs
        _, slope = output
        ctx.mark_non_differentiable(slope)
        # Where a meta-gradient follows the target, the gradient is computed from it again.
        kept = None if target_logits.requires_grad else slope
        ctx.save_for_backward(target_logits, logits, kept)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        target_logits, logits, slope = ctx.saved_tensors
        if slope is None or torch.is_grad_enabled():
            slope = torch.log_softmax(logits, -1).exp() - torch.log_softmax(target_logits, -1).exp()
        return None, grads[0].unsqueeze(-1) * slope


class _SparseCrossEntropy(Function):
    """Cross-entropy of weights on a few classes, ``index`` and ``weights`` [R, M]; as above."""

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, index: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        log_q = torch.log_softmax(logits, -1)
        loss = -(log_q.gather(-1, index) * weights).sum(-1)
        return loss, log_q.exp().scatter_add(-1, index, -weights)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, slope = output
        ctx.mark_non_differentiable(slope)
        ctx.save_for_backward(*inputs, slope)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        logits, index, weights, slope = ctx.saved_tensors
        if torch.is_grad_enabled():
            slope = torch.log_softmax(logits, -1).exp().scatter_add(-1, index, -weights)
        return grads[0].unsqueeze(-1) * slope, None, None
