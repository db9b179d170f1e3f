"""Gradient transforms: pairs of pure functions ``init`` and ``update``, composed by ``chain``.

They work on parameters by name and never change their inputs, so a meta-gradient can pass through.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from discorl.types import Params

Schedule = Callable[[Tensor], Tensor]
"""Learning rate as a function of the number of updates made so far."""


class Transform(NamedTuple):
    """``init(params) -> state`` and ``update(updates, state, params) -> (updates, state)``."""

    init: Callable[[Params], Any]
    update: Callable[[Params, Any, Params], tuple[Params, Any]]


class AdamState(NamedTuple):
    """Number of updates, first and second moment."""

    num_updates: Tensor
    mu: Params
    nu: Params


def chain(*transforms: Transform) -> Transform:
    """Apply transforms in order."""

    def init(params: Params) -> tuple:
        return tuple(t.init(params) for t in transforms)

    def update(updates: Params, state: tuple, params: Params) -> tuple[Params, tuple]:
        new_state = []
        for t, s in zip(transforms, state, strict=True):
            updates, s = t.update(updates, s, params)
            new_state.append(s)
        return updates, tuple(new_state)

    return Transform(init, update)


def scale_by_adam(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Transform:
    """Adam's rescaling; the second moment is a constant for meta-gradients, so they stay finite."""

    def init(params: Params) -> AdamState:
        device = next(iter(params.values())).device
        zeros = {k: torch.zeros_like(p) for k, p in params.items()}
        return AdamState(torch.zeros((), device=device), zeros, dict(zeros))

    def update(updates: Params, state: AdamState, params: Params) -> tuple[Params, AdamState]:
        del params
        count = state.num_updates + 1
        mu_debias, nu_debias = 1 - b1**count, 1 - b2**count
        scaled, mu, nu = {}, {}, {}
        for k, g in updates.items():
            constant = g.detach()
            mu[k] = torch.lerp(g, state.mu[k], b1)
            nu[k] = torch.addcmul(state.nu[k].detach() * b2, constant, constant, value=1 - b2)
            denominator = (nu[k] / nu_debias).sqrt_().add_(eps).mul_(mu_debias)
            scaled[k] = mu[k] / denominator
        return scaled, AdamState(count, mu, nu)

    return Transform(init, update)


def clip(max_abs: float) -> Transform:
    """Clip every element to [-max_abs, max_abs]."""

    def update(updates: Params, state: tuple, params: Params) -> tuple[Params, tuple]:
        del params
        return {k: u.clamp(-max_abs, max_abs) for k, u in updates.items()}, state

    return Transform(lambda params: (), update)


def add_decayed_weights(weight_decay: float) -> Transform:
    """Add ``weight_decay`` times the parameters (decoupled decay, when placed after Adam)."""

    def update(updates: Params, state: tuple, params: Params) -> tuple[Params, tuple]:
        return {k: u + weight_decay * params[k] for k, u in updates.items()}, state

    return Transform(lambda params: (), update)


def scale_by_learning_rate(learning_rate: float | Schedule) -> Transform:
    """Descend: multiply by minus the learning rate, constant or scheduled."""
    if not callable(learning_rate):
        rate = float(learning_rate)
        return Transform(
            lambda params: (), lambda u, s, params: ({k: -rate * x for k, x in u.items()}, s)
        )

    def init(params: Params) -> Tensor:
        return torch.zeros((), device=next(iter(params.values())).device)

    def update(updates: Params, state: Tensor, params: Params) -> tuple[Params, Tensor]:
        del params
        rate = learning_rate(state)
        return {k: -rate * u for k, u in updates.items()}, state + 1

    return Transform(init, update)


class OwnRate(NamedTuple):
    """By how much the steps of an agent are longer than the others'."""

    factor: Tensor


def scale_by_own_rate() -> Transform:
    """Multiply by a factor that is the agent's own: 1 unless its state is given another."""

    def init(params: Params) -> OwnRate:
        return OwnRate(torch.ones((), device=next(iter(params.values())).device))

    def update(updates: Params, state: OwnRate, params: Params) -> tuple[Params, OwnRate]:
        del params
        return {k: state.factor * u for k, u in updates.items()}, state

    return Transform(init, update)


def warmup_cosine(peak: float, warmup: int, total: int) -> Schedule:
    """Linear rise to ``peak`` over ``warmup`` updates, then a cosine to 0 at ``total``."""

    def rate(count: Tensor) -> Tensor:
        rise = (count + 1) / max(warmup, 1)
        fall = ((count - warmup) / max(total - warmup, 1)).clamp(0, 1)
        cosine = 0.5 * (1 + torch.cos(math.pi * fall))
        return peak * torch.where(count < warmup, rise, cosine)

    return rate


def warmup_constant(peak: float, warmup: int) -> Schedule:
    """Linear rise to ``peak`` over ``warmup`` updates, then constant."""

    def rate(count: Tensor) -> Tensor:
        return peak * ((count + 1) / max(warmup, 1)).clamp(max=1)

    return rate


def global_norm(params: Params, batch_dims: int = 0) -> Tensor:
    """Euclidean norm of all parameters together, for each index of the first ``batch_dims``."""
    if batch_dims == 0:
        return torch.stack(torch._foreach_norm(list(params.values()))).norm()
    norms = [p.flatten(batch_dims).norm(dim=-1) for p in params.values() if p.dim() > batch_dims]
    return torch.stack(norms).norm(dim=0)
