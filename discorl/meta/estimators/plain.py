"""Memory mode ``plain``: one graph of all updates."""

from __future__ import annotations

import torch
from torch import Tensor

from discorl import tree
from discorl.errors import DiscorlError
from discorl.meta.estimators.base import MetaGradient
from discorl.meta.estimators.derivatives import vjp, with_grad
from discorl.meta.life import Earlier, Life, Source, Update, W, live
from discorl.meta.window import Window
from discorl.types import Params


def plain(
    window: Window, rule_params: Params, life: Life[W], source: Source[W], earlier: Earlier = ()
) -> MetaGradient[W]:
    """Keep the graph of all updates and of the judgement, and go back through it at once."""
    if earlier:
        raise DiscorlError(
            "memory mode 'plain' keeps no states to go back to: use 'recompute' or 'mixed' for a "
            "sliding window"
        )

    def keep(kept: list[Tensor], update: Update[W]) -> list[Tensor]:
        return [*kept, window.regulariser(update.info.targets, update.learnt_from)]

    params = with_grad(rule_params)
    life, regularisers = live(window, params, life, source, keep, [], graph="all updates")
    rollout, world = source.collect_validation(life.world, tree.detach(life.agents))
    policy_loss, regulariser, values = window.judge(life.agents.params, life.values, rollout)
    regulariser = regulariser + torch.stack(regularisers).mean(0)
    loss = policy_loss + regulariser
    return MetaGradient(
        loss=loss.detach(),
        policy_loss=policy_loss.detach(),
        regulariser=regulariser.detach(),
        gradient=vjp([(loss.sum(), None)], params),
        life=Life(tree.detach(life.agents), life.values, world),
        values=values,
    )
