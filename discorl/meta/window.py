"""A window: agents that are updated some times and then judged, and their source of rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from discorl.agents.agent import Agent
from discorl.agents.memory import without_burn_in
from discorl.agents.update import Each, one_agent
from discorl.bounds import check_at_least
from discorl.errors import DiscorlError
from discorl.meta.meta_value import MetaValue, MetaValueState
from discorl.meta.objective import ObjectiveWeights, target_regulariser
from discorl.ops.moments import MeanFn
from discorl.types import AgentState, DiscoTargets, Predictions, Rollout, Targets

MemoryMode = Literal["plain", "recompute", "mixed"]


@dataclass(frozen=True)
class WindowSettings:
    """What an agent does between two steps of the rule."""

    num_updates: int = 20
    """Updates that the meta-gradient goes back through."""
    stride: int | None = None
    """Updates between two steps of the rule. Fewer than num_updates: the window slides, and the
    gradient goes back through updates of earlier meta-steps, too. None: num_updates, no overlap."""
    num_envs: int = 32
    """Copies of its task that each agent acts in: fresh trajectories for each update."""
    rollout_length: int = 29
    """Time steps of a trajectory."""
    valid_length: int = 29
    """Time steps of the trajectories that judge the updated agent."""
    valid_rollouts: int = 1
    """Such trajectories that each copy makes, one after the other."""
    acts_ahead: bool = False
    """Collect all rollouts of a window before its first update, as the public notebook does."""
    num_replayed: int = 0
    """Replayed trajectories that join the fresh ones in each update."""
    replay_capacity: int = 0
    """Trajectories that each agent keeps for replay."""
    memory: MemoryMode = "recompute"
    """plain keeps the graph of all updates; recompute that of one at a time; mixed that of parts of
    one, by forward-mode derivatives of the agents' gradient."""
    offload: bool = False
    """Keep the agents' states of a window in the memory of the CPU (recompute and mixed)."""

    def __post_init__(self) -> None:
        check_at_least(1, "window: ", self, "num_updates", "num_envs", "valid_rollouts")
        if self.stride is not None and not 1 <= self.stride <= self.num_updates:
            raise DiscorlError("window: stride must be from 1 to num_updates")
        if self.memory == "plain" and self.stride not in (None, self.num_updates):
            raise DiscorlError(
                "window: with memory plain there is nothing to slide over; use --window.memory "
                "recompute or mixed, or no --window.stride"
            )
        if min(self.rollout_length, self.valid_length) < 2:
            raise DiscorlError("window: rollouts need at least 2 time steps (a transition)")
        check_at_least(0, "window: ", self, "num_replayed", "replay_capacity")
        if self.num_replayed and self.replay_capacity < self.num_envs:
            raise DiscorlError(
                "window: num_replayed needs a replay_capacity of num_envs trajectories or more"
            )

    @property
    def num_new(self) -> int:
        """Updates that the agents make in a window; the rest they have made before."""
        return self.num_updates if self.stride is None else self.stride


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

        def regulariser_one(targets: DiscoTargets, rollout: Rollout) -> Tensor:
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
