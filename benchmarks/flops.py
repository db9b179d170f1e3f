"""Count the FLOPs of a piece of torch work, and do its matrix products alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, addmm_flop, baddbmm_flop

from discorl.ops import native

aten = torch.ops.aten
IN_PLACE = {aten.addmm_: addmm_flop, aten.baddbmm_: baddbmm_flop}
"""Products that torch's counter leaves out."""

PRODUCTS = (aten.mm, aten.addmm, aten.bmm, aten.baddbmm, *IN_PLACE)


class Factor(NamedTuple):
    """A matrix, or a stack of them, as it lies in memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def make(self) -> Tensor:
        size = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        return torch.randn(size).as_strided(self.shape, self.stride)


Products = Counter[tuple[Factor, Factor]]
"""How often each product was asked for."""


class _Recorder(TorchDispatchMode):
    """Notes the factors of every matrix product; what an addmm adds is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.products: Products = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in PRODUCTS:
            left, right = (Factor(tuple(x.shape), tuple(x.stride())) for x in args[-2:])
            self.products[left, right] += 1
        return func(*args, **(kwargs or {}))


def products_of(run: Callable[[], object]) -> tuple[int, Products]:
    """FLOPs of one run, counted by torch, and the matrix products that they are spent on."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # what another thread does is not counted
    run()
    # The counter is the inner mode: it takes composite operations apart before the recorder looks.
    with (
        _Recorder() as recorder,
        FlopCounterMode(display=False, custom_mapping=IN_PLACE) as counter,
    ):
        run()
    torch.set_num_threads(threads)
    counted, recorded = counter.get_total_flops(), flop_of(recorder.products)
    if recorded < 0.99 * counted:
        raise RuntimeError(
            f"only {recorded} of {counted} FLOP are matrix products: extend PRODUCTS"
        )
    return counted, recorder.products


def flop_of(products: Products) -> int:
    """A multiplication and an addition for each pair of numbers that meet."""
    total = 0
    for (left, right), count in products.items():
        pairs = right.shape[-1]
        for n in left.shape:
            pairs *= n
        total += 2 * pairs * count
    return total


def replay_products(products: Products, by_kernel: bool = False) -> Callable[[], None]:
    """Do the same products, in the same memory layout, as often, one shape after the other.

    Torch does them, or our kernel.
    """
    prepared: list[tuple[Tensor, Tensor, Tensor, int]] = []
    for (left, right), count in products.items():
        a, b = left.make(), right.make()
        prepared.append((a, b, a @ b, count))
    if by_kernel:
        native.build()

    def run() -> None:
        with torch.inference_mode():
            for a, b, out, count in prepared:
                for _ in range(count):
                    if by_kernel and a.dim() == 2:
                        torch.ops.discorl.mm(a, b)
                    else:
                        torch.matmul(a, b, out=out)

    return run


def square_product(size: int) -> Callable[[], None]:
    """A product of square matrices."""
    square = Factor((size, size), (size, 1))
    return replay_products(Counter({(square, square): 1}))
