"""Memory mode ``recompute``: the graph of one update at a time, built again on the way back.

The agent's gradient is differentiated by a second backward pass.
"""

from __future__ import annotations

from torch import Tensor

from discorl.meta.estimators.base import MetaGradient
from discorl.meta.estimators.derivatives import state_with_grad, vjp, with_grad
from discorl.meta.estimators.one_at_a_time import one_at_a_time
from discorl.meta.life import Earlier, KeptUpdate, Life, Source, W
from discorl.meta.window import Window
from discorl.types import AgentState, Params


def backward(
    window: Window, kept: KeptUpdate, cotangents: AgentState, weight: Tensor
) -> tuple[Params, AgentState]:
    """Build the graph of the update again and go back through it."""
    params, leaf = with_grad(kept.rule_params), state_with_grad(kept.state)
    new, info = window.update(params, leaf, kept.rollout, differentiable=True)
    regulariser = window.regulariser(info.targets, window.learnt_from(kept.rollout))
    return vjp([(new, cotangents), ((regulariser * weight).sum(), None)], (params, leaf))


def recompute(
    window: Window, rule_params: Params, life: Life[W], source: Source[W], earlier: Earlier = ()
) -> MetaGradient[W]:
    """Go back through whole updates, one at a time."""
    return one_at_a_time(backward, window, rule_params, life, source, earlier)
