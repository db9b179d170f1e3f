"""A window: the updates of agents between two steps of the rule, and how they are judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import Tensor

from discorl.agents.agent import Agent
from discorl.agents.burn_in import warm_up, without_burn_in
from discorl.agents.network import with_params
from discorl.agents.update import Each, one_agent, update_agent
from discorl.bounds import MAX_AT_ONCE, check_at_least
from discorl.errors import DiscorlError
from discorl.meta import objective
from discorl.meta.meta_value import MetaValue, MetaValueState
from discorl.ops.masks import mask_logits
from discorl.types import AgentState, DiscoTargets, Params, Rollout, Targets, UpdateInfo, Values

MemoryMode = Literal["plain", "recompute", "mixed"]


@dataclass(frozen=True)
class WindowSettings:
    """What each agent does between two steps of the rule."""

    num_updates: int = 20
    """Number of updates that the meta-gradient goes back through."""
    stride: int | None = None
    """Updates between two steps of the rule. If fewer than --window.num-updates, the window slides:
    the gradient also goes back through updates of earlier meta-steps. None means as many, without
    overlap."""
    num_envs: int = 32
    """Copies of its task that each agent acts in; each gives one fresh trajectory per update."""
    rollout_length: int = 29
    """Time steps per trajectory."""
    valid_length: int = 29
    """Time steps per trajectory for judging the updated agent."""
    valid_rollouts: int = 1
    """How many of those trajectories each copy makes, in sequence."""
    burn_in: int = 0
    """First steps of every trajectory that only warm up the memory of recurrent agents and stay out
    of all losses; agents without memory ignore it."""
    acts_ahead: bool = False
    """Collect all of a window's rollouts before its first update, as the public notebook does."""
    num_replayed: int = 0
    """Replayed trajectories to add to the fresh ones in each update."""
    replay_capacity: int = 0
    """Trajectories that each agent keeps for replay."""
    memory: MemoryMode = "recompute"
    """plain keeps the graph of all updates; recompute keeps one update at a time; mixed keeps
    parts of one, using forward-mode derivatives of the agents' gradient."""

    def __post_init__(self) -> None:
        at_once = ("num_updates", "num_envs", "rollout_length", "valid_length", "valid_rollouts")
        check_at_least(1, "window: ", self, *at_once, most=MAX_AT_ONCE)
        if self.stride is not None and not 1 <= self.stride <= self.num_updates:
            raise DiscorlError("window: stride must be from 1 to num_updates")
        if self.memory == "plain" and self.num_earlier:
            raise DiscorlError(
                "window: a window cannot slide with memory plain: use --window.memory recompute or "
                "mixed, or remove --window.stride"
            )
        if min(self.rollout_length, self.valid_length) < 2:
            raise DiscorlError("window: rollouts need at least 2 time steps (a transition)")
        check_at_least(0, "window: ", self, "num_replayed", "burn_in", most=MAX_AT_ONCE)
        check_at_least(0, "window: ", self, "replay_capacity")
        if self.burn_in > min(self.rollout_length, self.valid_length) - 2:
            raise DiscorlError(
                f"window: burn_in {self.burn_in} leaves no transition of a trajectory to learn "
                "from: lower it, or raise rollout_length and valid_length"
            )
        if self.num_replayed and self.replay_capacity < self.num_envs:
            raise DiscorlError(
                "window: num_replayed needs a replay_capacity of at least num_envs trajectories"
            )

    @property
    def num_new(self) -> int:
        """Updates that the agents make in a window."""
        return self.num_updates if self.stride is None else self.stride

    @property
    def num_earlier(self) -> int:
        """Updates of a window that the agents have made before it; 0 unless it slides."""
        return self.num_updates - self.num_new


@dataclass(frozen=True)
class Window:
    """Agents, their value functions, and how the rule is judged by them."""

    agent: Agent
    meta_value: MetaValue
    weights: objective.ObjectiveWeights
    each: Each = one_agent

    @property
    def update(self) -> Callable[..., tuple[AgentState, UpdateInfo]]:
        """``update_agent`` for the agents of this window."""
        return partial(update_agent, self.agent, each=self.each)

    def learnt_from(self, rollout: Rollout) -> Rollout:
        """The time steps that the agents learn from."""
        return self.each(lambda x: without_burn_in(x, self.agent.burn_in))(rollout)

    def regulariser(self, targets: Targets, learnt_from: Rollout) -> Tensor:
        """What the targets of an update add to the meta-loss. [] or [P]"""

        def regulariser_one(targets: DiscoTargets, learnt_from: Rollout) -> Tensor:
            return objective.target_regulariser(
                targets, self.weights, learnt_from.is_dead, learnt_from.action_mask
            )

        return self.each(regulariser_one)(targets, learnt_from)

    def judge(
        self, params: Params, values: MetaValueState, rollout: Rollout
    ) -> tuple[Tensor, Tensor, Values]:
        """Updated agents on a validation rollout: policy loss, regulariser, values. [] or [P]"""

        def judge_one(
            params: Params, values: MetaValueState, rollout: Rollout
        ) -> tuple[Tensor, Tensor, Values]:
            rollout = warm_up(self.agent.net, params, rollout, self.agent.burn_in)
            heads = with_params(self.agent.net, params, lambda net: net.validate(rollout))
            logits, *others = heads
            validation = objective.Validation(mask_logits(logits, rollout.action_mask), *others)
            logits = validation.logits.detach()
            judged, _ = self.meta_value.estimate(values, rollout, logits)
            advantage = judged.normalized_advantage
            losses = objective.validation_loss(validation, rollout, advantage, self.weights)
            return *losses, judged

        return self.each(judge_one)(params, values, rollout)
