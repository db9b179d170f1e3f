"""Drawing the parameters of tasks. Draws are made where the generator is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from discorl.errors import DiscorlError

Range = float | tuple[float, float]
"""A fixed value, or the lowest and the highest that may be drawn."""
IntRange = int | tuple[int, int]
Number = TypeVar("Number", int, float)


def ends(bounds: Number | tuple[Number, Number]) -> tuple[Number, Number]:
    """The lowest and the highest value."""
    return bounds if isinstance(bounds, tuple) else (bounds, bounds)


def check_range(name: str, bounds: Range, low: float, high: float = math.inf) -> None:
    """Raise unless ``bounds`` lie within ``low`` and ``high``, in order."""
    first, last = ends(bounds)
    if not low <= first <= last <= high:
        limit = f"{low:g} or more" if high == math.inf else f"from {low:g} to {high:.7g}"
        raise DiscorlError(
            f"{name} must be a number {limit}, or a range (low, high) of them, not {bounds}"
        )


def check_count(name: str, count: int, low: int, high: int) -> None:
    """Raise unless ``count``, which shapes depend on, lies within ``low`` and ``high``."""
    if not low <= count <= high:
        raise DiscorlError(f"{name} must be from {low} to {high}, not {count}")


def check_probability(name: str, bounds: Range) -> None:
    """Raise unless a probability can be drawn from ``bounds``; ranges are logarithmic."""
    check_range(name, bounds, 0, 1)
    first, last = ends(bounds)
    if first == 0 and last > 0:
        raise DiscorlError(
            f"{name} is drawn on a logarithmic scale: its range must start above 0, not {bounds}"
        )


def uniform(bounds: Range, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Floats, every value as likely as any other."""
    low, high = ends(bounds)
    drawn = torch.rand(*shape, generator=generator, device=generator.device)
    return low + (high - low) * drawn


def log_uniform(bounds: Range, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Floats, every order of magnitude as likely as any other."""
    low, high = ends(bounds)
    if low == high:  # may be 0, which has no logarithm
        return torch.full(tuple(shape), float(low), device=generator.device)
    drawn = uniform((math.log(low), math.log(high)), shape, generator).exp()
    return drawn.clamp(low, high)


def integers(bounds: IntRange, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Whole numbers, both ends included."""
    low, high = ends(bounds)
    size = tuple(shape)
    return torch.randint(low, high + 1, size, generator=generator, device=generator.device)


def log_integers(bounds: IntRange, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Whole numbers, every order of magnitude as likely as any other."""
    return log_uniform(bounds, shape, generator).round().long()


def shuffle(wanted: bool, num: int, size: int, generator: torch.Generator) -> Tensor | None:
    """Random orders of ``size`` things [num, size], or None if they keep their places."""
    if not wanted:
        return None
    return torch.rand(num, size, generator=generator, device=generator.device).argsort(1)
