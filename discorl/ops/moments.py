"""Running mean and variance of a scalar, debiased as in Adam."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from discorl.ops.roots import exact_sqrt
from discorl.ops.step_means import live_mean
from discorl.types import Moments

EPS = 1e-6
ROOT_EPS = 1e-12

MeanFn = Callable[[Tensor], Tensor]
"""Averages a tensor over the processes that share a batch."""


def alone(x: Tensor) -> Tensor:
    """The mean over a single process."""
    return x


def init_moments(device: torch.device | str | None = None) -> Moments:
    """No observations yet."""
    zero = torch.zeros((), device=device)
    return Moments(mean=zero, mean_square=zero, decay_product=torch.ones((), device=device))


def update_moments(
    moments: Moments,
    x: Tensor,
    decay: float = 0.99,
    across: MeanFn = alone,
    is_dead: Tensor | None = None,
) -> Moments:
    """Fold the mean of ``x`` and of its square into the moments; dead steps do not count."""
    mean, mean_square = live_mean(x, is_dead), live_mean(x.square(), is_dead)
    return Moments(
        mean=decay * moments.mean + (1 - decay) * across(mean),
        mean_square=decay * moments.mean_square + (1 - decay) * across(mean_square),
        decay_product=moments.decay_product * decay,
    )


def normalize(moments: Moments, x: Tensor, subtract_mean: bool = True) -> Tensor:
    """(x - mean) / std, or x / std."""
    debias = 1 / (1 - moments.decay_product)
    mean = moments.mean * debias
    variance = (moments.mean_square * debias - mean.square()).clamp(min=0)
    std = exact_sqrt(variance + ROOT_EPS) + EPS  # two epsilons: a finite gradient at variance 0
    return (x - mean if subtract_mean else x) / std
