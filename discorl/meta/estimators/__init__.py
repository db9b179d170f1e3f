"""Estimators of the gradient of the meta-loss through K updates of agents, one in each file.

``plain`` keeps the graph of all updates. ``recompute`` and ``mixed`` run them without one, keep the
state before each, and go back one update at a time: the memory of one update, for the time of about
one more pass. ``recompute`` rebuilds the graph of the update, ``mixed`` only that of its parts. All
three give the same gradient. ``imitation`` is the gradient of a warm start instead.
"""

from __future__ import annotations

from collections.abc import Callable

from discorl.meta.estimators.base import Estimate, Estimator, MetaGradient
from discorl.meta.estimators.imitation import imitation
from discorl.meta.estimators.mixed import mixed
from discorl.meta.estimators.plain import plain
from discorl.meta.estimators.recompute import recompute
from discorl.meta.life import GivenRollouts, Life
from discorl.meta.meta_value import MetaValueState
from discorl.meta.sliding_window import Earlier
from discorl.meta.window import MemoryMode, Window
from discorl.types import AgentState, Params

__all__ = ["MODES", "Estimate", "Estimator", "MetaGradient", "imitation", "meta_gradient"]

MODES: dict[MemoryMode, Callable[..., MetaGradient]] = {
    "plain": plain,
    "recompute": recompute,
    "mixed": mixed,
}


def meta_gradient(
    window: Window,
    rule_params: Params,
    state: AgentState,
    value_state: MetaValueState,
    source: GivenRollouts,
    mode: MemoryMode = "recompute",
    earlier: Earlier = (),
) -> MetaGradient[int]:
    """Update the agents on each of the given rollouts, judge them, differentiate the rule.

    The gradient also goes back through ``earlier`` updates, those that led to ``state``.
    """
    return MODES[mode](window, rule_params, Life(state, value_state, 0), source, earlier)
