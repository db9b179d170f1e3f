"""A window: agents that are updated some times and then judged, and their source of rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from discorl.agents.agent import Agent
from discorl.agents.burn_in import without_burn_in
from discorl.agents.update import Each, one_agent
from discorl.meta.meta_value import MetaValue, MetaValueState
from discorl.meta.objective import ObjectiveWeights, target_regulariser
from discorl.ops.moments import MeanFn
from discorl.types import AgentState, Predictions, Rollout, Targets


class RolloutSource(Protocol):
    """Where a window's rollouts come from."""

    num_updates: int

    def training(self, update: int, state: AgentState) -> Rollout:
        """The rollout for an update of agents in ``state``; asked for once each, in order."""
        ...

    def validation(self, state: AgentState) -> Rollout:
        """The rollout that judges the updated agents, asked for last."""
        ...


class GivenRollouts:
    """Rollouts that are all there beforehand."""

    def __init__(self, training: Sequence[Rollout], validation: Rollout) -> None:
        self._training = training
        self._validation = validation
        self.num_updates = len(training)

    def training(self, update: int, state: AgentState) -> Rollout:
        del state
        return self._training[update]

    def validation(self, state: AgentState) -> Rollout:
        del state
        return self._validation


@dataclass(frozen=True)
class Window:
    """Agents, their value functions, and how the rule is judged by them."""

    agent: Agent
    meta_value: MetaValue
    weights: ObjectiveWeights
    across: MeanFn = lambda x: x
    each: Each = one_agent

    def regulariser(self, targets: Targets, rollout: Rollout) -> Tensor:
        """What the targets of an update on ``rollout`` add to the meta-loss. [] or [P]"""

        def regulariser_one(targets: Targets, rollout: Rollout) -> Tensor:
            learnt_from = without_burn_in(rollout, self.agent.burn_in)
            return target_regulariser(targets, self.weights, learnt_from.is_dead)

        return self.each(regulariser_one)(targets, rollout)

    def update_value(
        self, value_state: MetaValueState, rollout: Rollout, predictions: Predictions
    ) -> MetaValueState:
        """Let the value functions learn from a rollout that the agents have learnt from."""
        learnt_from = self.each(lambda x: without_burn_in(x, self.agent.burn_in))(rollout)
        logits = predictions.logits.detach()
        return self.meta_value.update(value_state, learnt_from, logits, self.across, self.each)
