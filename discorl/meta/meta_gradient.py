"""The gradient of the meta-loss through K updates of agents, by any of the memory modes."""

from __future__ import annotations

from collections.abc import Callable

from discorl.meta.estimators.base import MetaGradient
from discorl.meta.estimators.mixed import mixed
from discorl.meta.estimators.plain import plain
from discorl.meta.estimators.recompute import recompute
from discorl.meta.life import Earlier, GivenRollouts, Life
from discorl.meta.meta_value import MetaValueState
from discorl.meta.window import MemoryMode, Window
from discorl.types import AgentState, Params

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
