"""Work on many rows, a block at a time, so that intermediate results stay in the cache."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from discorl.ops import native

ROWS_PER_BLOCK = 2048


def block_size(rows_each: int = 1) -> int:
    """How many rows make a block if each becomes ``rows_each``."""
    return max(1, ROWS_PER_BLOCK // rows_each)


def in_blocks(
    fn: Callable[..., tuple[Tensor, ...]], *inputs: Tensor, rows_each: int = 1
) -> tuple[Tensor, ...]:
    """Apply ``fn`` to blocks of rows and join what it returns; kernels make blocks themselves."""
    rows = block_size(rows_each)
    if len(inputs[0]) <= rows or native.apply_to(inputs[0]):
        return fn(*inputs)
    splits = (x.split(rows) for x in inputs)
    blocks = [fn(*block) for block in zip(*splits, strict=True)]
    return tuple(torch.cat(parts) for parts in zip(*blocks, strict=True))
