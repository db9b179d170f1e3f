"""A warm start: the rule first learns to imitate a hand-written one.

From random weights the meta-gradient says next to nothing at first: agents that do not learn tell
little about how they should. It becomes useful once the rule can already improve a policy.
"""

from __future__ import annotations

import torch
from torch import Tensor

from discorl.meta.estimators.base import Estimate
from discorl.meta.estimators.derivatives import vjp, with_grad
from discorl.meta.life import Earlier, Life, Source, Update, W, disowned, live
from discorl.meta.objective import target_mean
from discorl.meta.window import Window
from discorl.ops.categorical import kl_divergence
from discorl.ops.step_means import live_mean
from discorl.rules.improvement import Improvement, improved_policy
from discorl.types import DiscoTargets, Params, Rollout


def imitation_loss(targets: DiscoTargets, rollout: Rollout) -> Tensor:
    """How far pi-hat is from the improved policy; the means of targets are kept near 0."""
    improved = improved_policy(
        targets.target_logits, targets.values, rollout.actions, Improvement()
    ).detach()
    distance = kl_divergence(improved, targets.pi)
    mean = target_mean(targets, rollout.is_dead, rollout.action_mask)
    return live_mean(distance, rollout.is_dead) + 1e-3 * mean


def imitation(
    window: Window, rule_params: Params, life: Life[W], source: Source[W], earlier: Earlier = ()
) -> Estimate[W]:
    """The gradient of the imitation; agents are updated by the rule as it is.

    Later windows do not go back through these updates, nor through those before them.
    """
    params = with_grad(rule_params)

    def keep(kept: tuple[Params, list[Tensor]], update: Update[W]) -> tuple[Params, list[Tensor]]:
        gradient, losses = kept
        loss = window.each(imitation_loss)(update.info.targets, update.learnt_from)
        grads = vjp([(loss.sum(), None)], params)
        gradient = {k: g + grads[k] / source.num_updates for k, g in gradient.items()}
        return gradient, [*losses, loss.detach()]

    start = ({k: torch.zeros_like(p) for k, p in rule_params.items()}, [])
    life, (gradient, losses) = live(window, params, life, source, keep, start, graph="each update")
    return Estimate(
        loss=torch.stack(losses).mean(0), gradient=gradient, life=life, earlier=disowned(earlier)
    )
