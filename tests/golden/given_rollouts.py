"""Meta-gradients through rollouts that were all made in advance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from discorl.meta.estimators.base import MetaGradient
from discorl.meta.life import Earlier, Life
from discorl.meta.meta_step import MODES
from discorl.meta.meta_value import MetaValueState
from discorl.meta.window import MemoryMode, Window
from discorl.types import AgentState, Params, Rollout


@dataclass(frozen=True)
class GivenRollouts:
    """A ``Source`` whose world is the number of rollouts used so far."""

    training: Sequence[Rollout]
    validation: Rollout

    @property
    def num_updates(self) -> int:
        return len(self.training)

    def collect(self, world: int, agents: AgentState) -> tuple[Rollout, int]:
        del agents
        return self.training[world], world + 1

    def collect_validation(self, world: int, agents: AgentState) -> tuple[Rollout, int]:
        del agents
        return self.validation, world


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
