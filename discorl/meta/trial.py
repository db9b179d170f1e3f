"""A trial: fresh agents, side by side, trained by a fixed rule. How a rule is judged."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from discorl.meta.life import Life, Update, live
from discorl.meta.population import Group, init_group
from discorl.meta.population_acting import Episodes, GroupActing, PopulationRollouts
from discorl.types import Params


def run_trial(
    group: Group, rule_params: Params, num_updates: int, generator: torch.Generator
) -> Tensor:
    """Mean return of the episodes that ended before each update, for each agent. [updates, P]

    Before an agent's first episode ends this is NaN; where none ended, it repeats the last.
    """
    settings = replace(group.settings, num_updates=num_updates, acts_ahead=False, stride=None)
    group = replace(group, settings=settings)
    state = init_group(group, generator)
    source = PopulationRollouts(group, generator)
    life = Life(state.agents, state.values, source.begin(state))

    def keep(kept: list[Episodes], update: Update[GroupActing]) -> list[Episodes]:
        return [*kept, update.world.episodes]

    start, rule = [life.world.episodes], group.for_each(rule_params)
    _, counts = live(group.window, rule, life, source, keep, start, judged=False)
    means = [torch.full_like(counts[0].returns, float("nan"))]
    for before, now in pairwise(counts):
        means.append(mean_since(now, before, means[-1]))
    return torch.stack(means[1:])


def mean_since(now: Episodes, before: Episodes, otherwise: Tensor) -> Tensor:
    """Mean return of the episodes between two counts. [P]"""
    count = now.count - before.count
    return torch.where(count > 0, (now.returns - before.returns) / count.clamp(min=1), otherwise)
