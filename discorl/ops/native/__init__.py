"""A few functions in C++ (``rows.cpp``), for learning on the CPU.

``build`` compiles and loads them. They stand in for their torch counterparts inside of ``with
kernels(True)``, wherever ``in_use`` says so: single precision, on the CPU. They have no gradients;
``apply_to`` asks besides that none is wanted. Results differ from torch's by rounding only.

``kernels(..., bf16=True)`` has the factors of large matrix products rounded to bfloat16, here and
where torch multiplies instead.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch._C._functorch import (  # pyright: ignore[reportMissingImports]
    is_batchedtensor,
    is_gradtrackingtensor,
)

from discorl.ops.native import library
from discorl.types import Layers

NEVER = 2**63 - 1
PROBES = 8
LARGE = 64
"""Terms from which on the sums of a matrix product make it a large one."""
WORTH = 0.97
"""Share of rows above which choosing among them does not pay."""

_is_built = False
_in_use: ContextVar[bool] = ContextVar("native kernels in use", default=False)
_bf16: ContextVar[bool] = ContextVar("large products of bfloat16", default=False)
_gradient_in: ContextVar[tuple[tuple[int, int], Tensor] | None] = ContextVar(
    "rows with a gradient", default=None
)
_may_pack: ContextVar[bool] = ContextVar("weights may be packed ahead", default=False)
_packed: ContextVar[dict[int, tuple[Tensor, Tensor]] | None] = ContextVar(
    "weights that do not change", default=None
)
_for_agents: ContextVar[bool] = ContextVar("kernels with an axis of agents", default=False)
_while_compiling = False
"""The same for torch.compile, which cannot read the above, but compiles again if this changes."""


@contextmanager
def kernels(use: bool, bf16: bool = False) -> Iterator[None]:
    """Whether the kernels, once built, stand in for torch's operations, and how they round."""
    global _while_compiling
    tokens, before = (_in_use.set(use), _bf16.set(bf16)), _while_compiling
    _while_compiling = use and _is_built
    try:
        yield
    finally:
        _in_use.reset(tokens[0])
        _bf16.reset(tokens[1])
        _while_compiling = before


@contextmanager
def acting(use: bool, bf16: bool = False) -> Iterator[None]:
    """The same for acting: weights are packed ahead, and bf16 rounds in what is left to torch."""
    token = _may_pack.set(use)
    try:
        with kernels(use and bf16, bf16):
            yield
    finally:
        _may_pack.reset(token)


@contextmanager
def constant_weights() -> Iterator[None]:
    """No parameter changes in here, so that weights are packed for products only once."""
    token = _packed.set({} if _may_pack.get() else None)
    try:
        yield
    finally:
        _packed.reset(token)


def packed_mlp(x: Tensor, layers: Callable[[], Layers]) -> Tensor | None:
    """An MLP of weights that do not change, without gradients; None where there is no such way."""
    if torch.compiler.is_compiling():  # which cannot read the next line
        return None
    known = _packed.get()
    if known is None or torch.is_grad_enabled() or x.dim() != 2 or not _fit((x,)):
        return None
    if torch._C._are_functorch_transforms_active():
        return None
    weights, biases, many = [], [], round_from()
    for weight, bias in layers():
        pair = known.get(id(weight))
        if pair is None:  # the weight is kept, so that its id stays its own
            is_rounded = weight.shape[1] >= many
            if not _fit((weight, bias)) or not torch.ops.discorl.can_pack(is_rounded):
                return None
            pair = known[id(weight)] = weight, torch.ops.discorl.pack_weight(weight, is_rounded)
        weights.append(pair[1])
        biases.append(bias)
    return torch.ops.discorl.packed_mlp(x, weights, biases, many)


@contextmanager
def gradient_in(rows: Tensor | None) -> Iterator[None]:
    """While gradients are taken: the only rows that have any.

    ``rows`` [T-1, B]: whether the gradient of a row may be other than 0, in tensors of all these
    rows, and in those that have B more after them, whose gradient is 0. None if nothing is known.
    """
    known = None
    if rows is not None:
        sizes = (rows.numel(), rows.numel() + rows.shape[1])
        known = sizes, rows.flatten().nonzero().squeeze(1)
    token = _gradient_in.set(known)
    try:
        yield
    finally:
        _gradient_in.reset(token)


def rows_with_gradient(num_rows: int) -> Tensor | None:
    """Those of a tensor with so many rows, in ascending order; None if it may be all of them."""
    sizes, index = _gradient_in.get() or ((), None)
    if index is None or num_rows not in sizes:
        return None
    return index if len(index) < WORTH * num_rows else None


def has_agent_axis() -> bool:
    """Whether this processor has kernels with an axis of agents, built or not."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


@contextmanager
def for_agents(use: bool) -> Iterator[None]:
    """Let kernels with an axis of agents stand in for torch's, in this thread, from here on.

    Products of many matrices take the place of torch's own, ``bmm`` and ``baddbmm``, inside of vmap
    and out, so that derivatives of any order find them. The other kernels serve only inside of
    vmap, and have first derivatives.
    """
    if not (use and torch.ops.discorl.has_agent_axis()):
        yield
        return
    before = torch.ops.discorl.multiply_for_agents(True)
    token = _for_agents.set(True)
    try:
        yield
    finally:
        _for_agents.reset(token)
        torch.ops.discorl.multiply_for_agents(before)


def of_agents(*tensors: Tensor) -> bool:
    """Whether to use a kernel here that has an axis of agents."""
    if torch.compiler.is_compiling() or not _for_agents.get():
        return False
    if not torch._C._are_functorch_transforms_active() or not _fit(tensors):
        return False
    # Their derivatives are torch's own: it is vmap that they know, not torch.func.grad.
    return any(map(is_batchedtensor, tensors)) and not any(map(is_gradtrackingtensor, tensors))


def rounds(num_terms: int) -> bool:
    """Whether factors are rounded to bfloat16 in products whose sums have so many terms."""
    return not torch.compiler.is_compiling() and _bf16.get() and num_terms >= LARGE


def round_from() -> int:
    """The number of terms from which on they are."""
    return LARGE if _bf16.get() else NEVER


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


def bf16_gain() -> float:
    """How many times as fast large products become here if their factors are rounded to bfloat16.

    0 if the kernels were built for a processor that has no instructions for it.
    """
    build()
    if not torch.ops.discorl.has_bf16():
        return 0.0
    a, b = torch.zeros(768, 512), torch.zeros(512, 512)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(PROBES):
        for is_rounded, times in seconds.items():
            start = time.perf_counter()
            torch.ops.discorl.mm(a, b, is_rounded)
            times.append(time.perf_counter() - start)
    return min(seconds[False]) / min(seconds[True])  # others may use the machine at times
