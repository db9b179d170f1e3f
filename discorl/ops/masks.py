"""Action masks: what an action that is not allowed leaves behind, which is nothing.

A mask is True where an action is allowed, in the shape of the logits; None if all always are. There
is at least one such action in every row.
"""

from __future__ import annotations

import torch
from torch import Tensor

MASKED = -1e9
"""The logit of an action that is not allowed. Its probability is exactly 0, as with minus infinity,
but 0 times its logarithm is 0 rather than NaN."""


def mask_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """The logits of a policy that takes only actions which are allowed. [..., A]"""
    return logits if mask is None else torch.where(mask, logits, MASKED)


def mean_over_actions(x: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over the actions that are allowed. [..., A, C], [..., A] -> [..., C]"""
    if mask is None:
        return x.mean(-2)
    weights = mask.unsqueeze(-1).to(x.dtype)
    return (x * weights).sum(-2) / weights.sum(-2)


def max_over_actions(x: Tensor, mask: Tensor | None) -> Tensor:
    """The maximum over the actions that are allowed. [..., A, C], [..., A] -> [..., C]"""
    if mask is None:
        return x.amax(-2)
    return torch.where(mask.unsqueeze(-1), x, MASKED).amax(-2)
