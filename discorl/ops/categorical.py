"""Categorical distributions given by logits, and scalars as categorical distributions."""

from __future__ import annotations

import torch
from torch import Tensor


def select_action(x: Tensor, actions: Tensor) -> Tensor:
    """x[..., a, :] for each action a. ``x`` [T, B, A, ...], ``actions`` [T, B] -> [T, B, ...]"""
    index = actions.reshape(*actions.shape, *(1,) * (x.dim() - actions.dim()))
    index = index.expand(*actions.shape, 1, *x.shape[actions.dim() + 1 :])
    return x.gather(actions.dim(), index).squeeze(actions.dim())


def log_prob(logits: Tensor, actions: Tensor) -> Tensor:
    """log pi(a). ``logits`` [..., A], ``actions`` [...] -> [...]"""
    return select_action(torch.log_softmax(logits, -1), actions)


def importance_weight(pi_logits: Tensor, mu_logits: Tensor, actions: Tensor) -> Tensor:
    """rho = pi(a) / mu(a), a constant for every gradient."""
    return (log_prob(pi_logits, actions) - log_prob(mu_logits, actions)).exp().detach()


def entropy(logits: Tensor) -> Tensor:
    """H(softmax(logits)) over the last axis."""
    log_p = torch.log_softmax(logits, -1)
    return -(log_p.exp() * log_p).sum(-1)


def kl_divergence(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    """KL(softmax(p) || softmax(q)) over the last axis."""
    log_p = torch.log_softmax(p_logits, -1)
    log_q = torch.log_softmax(q_logits, -1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def support(num_bins: int, max_abs: float, like: Tensor) -> Tensor:
    """The values that the bins stand for, evenly spaced on [-max_abs, max_abs]. [K]"""
    return torch.linspace(-max_abs, max_abs, num_bins, dtype=like.dtype, device=like.device)


def expectation(logits: Tensor, max_abs: float) -> Tensor:
    """The mean of a categorical value. ``logits`` [..., K] -> [...]"""
    return torch.softmax(logits, -1) @ support(logits.shape[-1], max_abs, logits)


def two_hot(x: Tensor, num_bins: int, max_abs: float) -> Tensor:
    """x as weights on the two bins around it. [...] -> [..., K]"""
    lower, weight_upper = two_hot_position(x, num_bins, max_abs)
    bins = torch.arange(num_bins, device=x.device)
    on_lower = bins == lower.unsqueeze(-1)
    on_upper = bins == (lower + 1).unsqueeze(-1)
    return on_lower * (1 - weight_upper).unsqueeze(-1) + on_upper * weight_upper.unsqueeze(-1)


def two_hot_position(x: Tensor, num_bins: int, max_abs: float) -> tuple[Tensor, Tensor]:
    """The bin below x, and the weight of the one above.

    The reference divides the lower weight by (width + 1e-5), so a scalar between two bins leans
    upwards by that much. Reproduced: it is within the published rule's training.
    """
    width = 2 * max_abs / (num_bins - 1)
    x = x.clamp(-max_abs, max_abs)
    position = (x + max_abs) / width
    lower = position.floor().clamp(max=num_bins - 2)
    weight_lower = ((lower + 1) * width - max_abs - x) / (width + 1e-5)
    # On a bin exactly, the reference's floor and ceiling agree and all weight stays there.
    weight_lower = torch.where(position == lower, torch.ones_like(x), weight_lower)
    # NaN has no bin: any will do, because its weights are NaN too and show up there.
    return lower.long().clamp(0, num_bins - 2), 1 - weight_lower
