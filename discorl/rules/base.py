"""What an update rule is."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from discorl.ops.moments import MeanFn
from discorl.rules.values import ReturnSettings
from discorl.types import (
    AgentOutput,
    Heads,
    Params,
    Reader,
    Rollout,
    RuleState,
    Targets,
)


class UpdateRule(Protocol):
    """Turns experience into targets, and targets into a loss.

    A rule is a fixed structure. What it has learnt are its parameters, which for hand-written
    rules are empty; what it remembers of one agent is that agent's ``RuleState``.

    Unrolls, predictions and targets are of kinds that the rule chooses, so the parameters that take
    them are ``Any`` here and exact in each rule.
    """

    @property
    def returns(self) -> ReturnSettings:
        """How it discounts returns."""
        ...

    @property
    def mask_episode_starts(self) -> bool:
        """Whether agents leave each episode's first step out of the loss, as in the reference.

        If episodes are only a step or two long, the first action would never be learnt.
        """
        ...

    def heads(self, num_actions: int) -> Heads:
        """The outputs that the agent's network must have."""
        ...

    def init_params(self, generator: torch.Generator) -> Params:
        """Random rule parameters, where discovery starts."""
        ...

    def init_state(self, agent_params: Params) -> RuleState:
        """The memory of an agent that has not learnt yet."""
        ...

    def reader(self, rule_params: Params) -> Reader | None:
        """How the rule reads z and q of each action; None if it does not."""
        ...

    def targets(
        self,
        rule_params: Params,
        state: RuleState,
        agent_params: Params,
        unroll: Any,
        target: Any,
        rollout: Rollout,
        across: MeanFn,
    ) -> tuple[Targets, RuleState]:
        """What the predictions should become, and the rule's next memory.

        ``unroll`` is the agent's network over the rollout; ``target`` the same with the target
        parameters, or None if the rule's state has none.
        """
        ...

    def loss(
        self, predictions: Any, targets: Any, rollout: Rollout
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of each step [T-1, B], and its unweighted parts."""
        ...

    def state_value(self, output: AgentOutput) -> Tensor | None:
        """V of each state, as a constant [...]; None if the rule's agents have no values."""
        ...

    def diagnostics(self, predictions: Any, targets: Any, rollout: Rollout) -> dict[str, Tensor]:
        """Means worth logging that the update itself does not need."""
        ...
