"""Means that leave dead steps out: those in which an environment only reset (see ``TimeStep``)."""

from __future__ import annotations

from torch import Tensor


def live_mean(x: Tensor, is_dead: Tensor | None) -> Tensor:
    """The mean of everything in ``x`` except dead steps.

    ``x`` [T', B, ...] with T' up to the T of ``is_dead`` [T, B]; None if no step is dead.
    """
    if is_dead is None:
        return x.mean()
    weights, num_live = _weights(x, is_dead)
    return (x * weights).sum() / (num_live * x[0, 0].numel())


def live_mean_of_actions(x: Tensor, is_dead: Tensor | None, mask: Tensor | None) -> Tensor:
    """The mean of everything but dead steps and actions that are not allowed. [T', B, A] -> []"""
    if mask is None:
        return live_mean(x, is_dead)
    weights = mask[: len(x)].to(x.dtype)
    if is_dead is not None:
        weights = weights * _weights(x, is_dead)[0]
    return (x * weights).sum() / weights.sum().clamp(min=1)


def live_mean_of_steps(x: Tensor, is_dead: Tensor | None) -> Tensor:
    """The mean over time and batch, also without dead steps. [T', B, ...] -> [...]"""
    if is_dead is None:
        return x.mean((0, 1))
    weights, num_live = _weights(x, is_dead)
    return (x * weights).sum((0, 1)) / num_live


def _weights(x: Tensor, is_dead: Tensor) -> tuple[Tensor, Tensor]:
    """1 for live steps, shaped to multiply ``x``, and how many there are (1 or more)."""
    live = (~is_dead[: len(x)]).to(x.dtype)
    return live.reshape(*live.shape, *(1,) * (x.dim() - 2)), live.sum().clamp(min=1)
