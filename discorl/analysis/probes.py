"""Probes: small networks that look for information in a vector, many of them trained at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

NUM_FOLDS = 5
WEIGHT_DECAY = 0.03
FAR = 8.0
"""Standard deviations from the mean beyond which inputs are cut off."""


@dataclass(frozen=True)
class ProbeSize:
    """An MLP and its training."""

    hidden: tuple[int, ...]
    num_updates: int
    batch: int
    learning_rate: float = 3e-3


SMALL = ProbeSize((128, 64, 32), 600, 64, 1e-2)
LARGE = ProbeSize((256, 256, 256), 90, 128)
"""As long as the time allows. Both were chosen on agents that no report shows, which learnt
catch:7x5 by disco-mini and by disco103: with twice the updates, R2 of entropies changes by 0.03 at
most, that of exact values by 0.08.
"""


@dataclass(frozen=True)
class Score:
    """How well a target can be predicted where the probes have not been trained."""

    value: float
    """R2 of a number (0 for its mean, below 0 for worse), accuracy of a class."""
    baseline: float
    """The same for the best constant: 0, or the share of the more frequent class."""


def cross_validate(
    inputs: Tensor,
    targets: Tensor,
    is_class: Sequence[bool],
    groups: Tensor,
    size: ProbeSize,
    seed: int = 0,
) -> list[Score]:
    """Scores of probes from inputs [N, D] to each column of targets [N, P], five-fold.

    A probe is an MLP with relu, one for each column and fold. Rows of a group [N] (a trajectory)
    are in the same fold, so that nothing of what is tested has been seen. NaN is an unknown target;
    classes are 0 and 1.
    """
    generator = torch.Generator().manual_seed(seed)
    fold = _folds(groups, generator)
    known = targets.isfinite()
    y = targets.nan_to_num()
    classes = torch.tensor(is_class)
    is_test = torch.stack([fold == f for f in range(NUM_FOLDS)])  # [F, N]
    is_train = known & ~is_test.unsqueeze(-1)  # [F, N, P]
    count = is_train.sum(1).clamp(min=1)
    mean = (y * is_train).sum(1) / count  # [F, P]
    spread = (((y - mean[:, None]) ** 2 * is_train).sum(1) / count).sqrt().clamp(min=1e-9)
    scaled = torch.where(classes, y, (y - mean[:, None]) / spread[:, None])  # [F, N, P]
    x = _standardised(inputs, ~is_test)
    params = _trained(x, scaled, is_train, ~is_test, classes, size, generator)
    with torch.no_grad():
        out = _forward(x, params)  # [F, N, P]
    guess = torch.where(classes, (out > 0).to(y), out * spread[:, None] + mean[:, None])
    held_out = is_test.unsqueeze(-1) & known
    scores = []
    for p, is_one in enumerate(is_class):
        rows = held_out[..., p]
        truth = y[:, p].expand(NUM_FOLDS, -1)[rows]
        own = guess[..., p][rows]
        if is_one:
            share = float(truth.mean())
            right = float((own == truth).double().mean())
            scores.append(Score(right, max(share, 1 - share)))
        else:
            plain = mean[:, None, p].expand_as(rows)[rows]  # of what each probe was trained on
            lost, all_of_it = ((truth - g).square().sum() for g in (own, plain))
            scores.append(Score(float(1 - lost / all_of_it.clamp(min=1e-12)), 0.0))
    return scores


def _folds(groups: Tensor, generator: torch.Generator) -> Tensor:
    """A fold for each row; groups are dealt out in random order. [N]"""
    names, place = groups.unique(return_inverse=True)
    order = torch.randperm(len(names), generator=generator)
    return (order % NUM_FOLDS)[place]


def _standardised(inputs: Tensor, is_train: Tensor) -> Tensor:
    """Inputs by the mean and deviation of each fold's own training rows. [F, N, D]

    In double precision: a newborn network's outputs differ in the last few digits only. What is
    far outside of what a fold was trained on is cut off.
    """
    x, rows = inputs.double(), is_train.double()
    x = x - x.mean(0)
    count = rows.sum(1, keepdim=True)
    mean = rows @ x / count  # [F, D]
    spread = (rows @ x.square() / count - mean.square()).clamp(min=1e-18).sqrt()
    return ((x - mean[:, None]) / spread[:, None]).clamp(-FAR, FAR).float()


def _trained(
    x: Tensor,
    y: Tensor,
    is_train: Tensor,
    rows: Tensor,
    classes: Tensor,
    size: ProbeSize,
    generator: torch.Generator,
) -> list[tuple[Tensor, Tensor]]:
    """Weights and biases of all probes. The first layer is [F, D, P * H], later ones [F * P, ..]"""
    num_folds, _, num_inputs = x.shape
    num_targets = y.shape[-1]
    sizes = [num_inputs, *size.hidden, 1]
    params = []
    for i, (m, n) in enumerate(pairwise(sizes)):
        shape = (num_folds, m, num_targets * n) if i == 0 else (num_folds * num_targets, m, n)
        weight = torch.randn(shape, generator=generator) * math.sqrt(2 / m)
        params.append(
            (weight.requires_grad_(), torch.zeros(shape[0], 1, shape[2]).requires_grad_())
        )
    optimiser = torch.optim.AdamW(
        [p for pair in params for p in pair], size.learning_rate, weight_decay=WEIGHT_DECAY
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, size.learning_rate, size.num_updates)
    chances = rows.float()
    each = torch.arange(num_folds)[:, None]
    for _ in range(size.num_updates):
        drawn = torch.multinomial(chances, size.batch, True, generator=generator)  # [F, R]
        out = _forward(x[each, drawn], params)
        wanted, counts = y[each, drawn], is_train[each, drawn]
        of_class = nn.functional.binary_cross_entropy_with_logits(
            out, wanted.clamp(0, 1), reduction="none"
        )
        loss = torch.where(classes, of_class, (out - wanted).square()) * counts
        optimiser.zero_grad()
        (loss.sum(1) / counts.sum(1).clamp(min=1)).sum().backward()
        optimiser.step()
        schedule.step()
    return params


def _forward(x: Tensor, params: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Every probe of each fold on its rows. [F, R, D] -> [F, R, P]"""
    (weight, bias), *later = params
    num_folds, num_rows, _ = x.shape
    num_targets = len(later[-1][0]) // num_folds
    h = torch.baddbmm(bias, x, weight).unflatten(-1, (num_targets, -1))  # [F, R, P, H]
    h = h.transpose(1, 2).flatten(0, 1)  # [F * P, R, H]
    for weight, bias in later:
        h = torch.baddbmm(bias, torch.relu(h), weight)
    return h.reshape(num_folds, num_targets, num_rows).transpose(1, 2)
