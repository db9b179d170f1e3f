"""A choice between two trees of tensors, agent by agent."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from discorl import tree

T = TypeVar("T")


def choose(mask: Tensor, new: T, otherwise: T | None = None) -> T:
    """``new`` where the mask holds, elsewhere ``otherwise`` or 0, even in place of NaN.

    ``mask`` has the leading dimensions of all tensors: [] for one agent, [P] for many.
    """

    def one(x: Tensor, y: Tensor | None = None) -> Tensor:
        wide = mask.reshape(*mask.shape, *(1,) * (x.dim() - mask.dim()))
        return torch.where(wide, x, torch.zeros_like(x) if y is None else y)

    return tree.map(one, new) if otherwise is None else tree.map(one, new, otherwise)
