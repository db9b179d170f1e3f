"""A trial: fresh agents, side by side, trained by a fixed rule. How a rule is judged."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from discorl import tree
from discorl.agents.update import update_agent
from discorl.meta.group import Acting, Episodes, Group, init_group
from discorl.types import Params


def run_trial(
    group: Group, rule_params: Params, num_updates: int, generator: torch.Generator
) -> Tensor:
    """Mean return of the episodes that ended before each update, for each agent. [updates, P]

    Before an agent's first episode ends this is NaN; where none ended, it repeats the last.
    """
    settings = replace(group.settings, acts_ahead=False, stride=None)
    group = replace(group, settings=settings)
    state = init_group(group, generator)
    source = Acting(group, state, generator)
    for_each = {k: p.expand(group.num_agents, *p.shape) for k, p in rule_params.items()}
    agents = state.agents
    means: list[Tensor] = []
    seen = source.episodes
    for update in range(num_updates):
        rollout = source.training(update, agents)
        agents, _ = update_agent(group.window.agent, for_each, agents, rollout, each=tree.vmap)
        last = means[-1] if means else torch.full_like(seen.returns, float("nan"))
        means.append(mean_since(source.episodes, seen, last))
        seen = source.episodes
    return torch.stack(means)


def mean_since(now: Episodes, before: Episodes, otherwise: Tensor) -> Tensor:
    """Mean return of the episodes between two counts. [P]"""
    count = now.count - before.count
    return torch.where(count > 0, (now.returns - before.returns) / count.clamp(min=1), otherwise)
