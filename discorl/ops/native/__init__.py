"""A few functions in C++ (``rows.cpp``), for learning on the CPU.

``build`` compiles and loads them. They stand in for their torch counterparts inside of ``with
kernels(True)``, wherever ``in_use`` says so: single precision, on the CPU. They have no gradients;
``apply_to`` asks besides that none is wanted. Results differ from torch's by rounding only.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from discorl.ops.native import library

_is_built = False
_in_use: ContextVar[bool] = ContextVar("native kernels in use", default=False)
_while_compiling = False
"""The same for torch.compile, which cannot read the above, but compiles again if this changes."""


@contextmanager
def kernels(use: bool) -> Iterator[None]:
    """Whether the kernels, once built, stand in for torch's operations."""
    global _while_compiling
    token, before = _in_use.set(use), _while_compiling
    _while_compiling = use and _is_built
    try:
        yield
    finally:
        _in_use.reset(token)
        _while_compiling = before


def in_use(*tensors: Tensor) -> bool:
    """Whether to use a kernel here, if its gradient is written out.

    Not inside of torch.compile, torch.func or autocast, none of which knows the kernels.
    """
    if torch.compiler.is_compiling() or not _in_use.get():
        return False
    if torch._C._are_functorch_transforms_active() or torch.is_autocast_enabled("cpu"):
        return False
    return _fit(tensors)


def apply_to(*tensors: Tensor) -> bool:
    """Whether to use a kernel here that has no gradient."""
    return not torch.is_grad_enabled() and in_use(*tensors)


def apply_even_compiled(*tensors: Tensor) -> bool:
    """The same for a kernel that torch.compile knows."""
    if torch.compiler.is_compiling():
        return _while_compiling and not torch.is_grad_enabled() and _fit(tensors)
    return apply_to(*tensors)


def _fit(tensors: tuple[Tensor, ...]) -> bool:
    return all(x.dtype == torch.float32 and x.device.type == "cpu" for x in tensors)


@functools.cache
def build() -> None:
    """Load the kernels, compiled on first use and then kept in the user's cache."""
    global _is_built
    library.load()
    torch.library.register_fake(  # its shape, for torch.compile
        "discorl::lstm_unroll_backward",
        lambda gates, weight, reset: gates.new_empty(*gates.shape[:2], len(weight)),
    )
    _is_built = True
