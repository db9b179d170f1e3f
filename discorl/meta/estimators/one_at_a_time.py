"""Going back one update at a time, for memory modes that keep no graph while agents live."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from discorl import tree
from discorl.meta.estimators.base import MetaGradient
from discorl.meta.estimators.derivatives import state_with_grad, vjp
from discorl.meta.life import Earlier, KeptUpdate, Life, Source, Update, W, live
from discorl.meta.window import Window
from discorl.types import AgentState, Params


class Backward(Protocol):
    """A way back through one update."""

    def __call__(
        self, window: Window, kept: KeptUpdate, cotangents: AgentState, weight: Tensor
    ) -> tuple[Params, AgentState]:
        """The gradient of the rule, and that of the state before.

        ``cotangents`` is the gradient of the state after; ``weight`` that of the update's own
        regulariser.
        """
        ...


def one_at_a_time(
    backward: Backward,
    window: Window,
    rule_params: Params,
    life: Life[W],
    source: Source[W],
    earlier: Earlier = (),
) -> MetaGradient[W]:
    """Keep the state before each update, judge the agents, then go ``backward`` through each.

    The way back continues through ``earlier`` updates, each with the rule that made it, as far as
    they belong to the same agents: this is how a window slides.
    """

    def keep(
        kept: tuple[list[KeptUpdate], list[Tensor]], update: Update[W]
    ) -> tuple[list[KeptUpdate], list[Tensor]]:
        everyone = torch.ones_like(update.info.loss, dtype=torch.bool)
        this = KeptUpdate(rule_params, update.before, update.rollout, everyone)
        regulariser = window.regulariser(update.info.targets, update.learnt_from)
        return [*kept[0], this], [*kept[1], regulariser]

    start = ([*earlier], [])
    life, (updates, regularisers) = live(window, rule_params, life, source, keep, start)
    newest = tuple(updates[len(updates) - len(earlier) :])

    leaf = state_with_grad(life.agents)
    rollout, world = source.collect_validation(life.world, life.agents)
    policy_loss, regulariser, values = window.judge(leaf.params, life.values, rollout)
    # Of the state, only the parameters are judged; all of it may carry gradients further back.
    cotangents = vjp([((policy_loss + regulariser).sum(), None)], leaf)

    gradient = {k: torch.zeros_like(p) for k, p in rule_params.items()}
    weight = 1 / torch.stack([x.own for x in updates]).sum(0).to(policy_loss.dtype)
    while updates:
        update = updates.pop()
        if not update.own.any():
            break  # nor are those before it
        of_rule, cotangents = backward(window, update, cotangents, weight)
        if not update.own.all():
            of_rule, cotangents = tree.where(update.own, (of_rule, cotangents))
        gradient = {k: g + of_rule[k] for k, g in gradient.items()}

    regulariser = regulariser.detach() + torch.stack(regularisers).mean(0)
    return MetaGradient(
        loss=policy_loss.detach() + regulariser,
        policy_loss=policy_loss.detach(),
        regulariser=regulariser,
        gradient=gradient,
        life=replace(life, world=world),
        values=values,
        earlier=newest,
    )
