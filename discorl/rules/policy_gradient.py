"""The plainest baseline: a policy gradient on normalised returns, with no critic."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from discorl.bounds import check_numbers
from discorl.ops.categorical import entropy, log_prob
from discorl.ops.moments import MeanFn
from discorl.rules.diagnostics import shown_means
from discorl.rules.hand_written import HandWritten
from discorl.rules.values import ReturnSettings, estimate_values
from discorl.types import (
    AgentOutput,
    Heads,
    Params,
    Predictions,
    Rollout,
    RuleState,
    Targets,
    Unroll,
)


@dataclass(frozen=True)
class PolicyGradientSettings:
    """The plain policy gradient."""

    entropy_cost: float = 0.01
    """Weight of the entropy bonus."""
    normalize_advantage: bool = True
    """Scale returns by their running mean and deviation."""

    def __post_init__(self) -> None:
        check_numbers("policy_gradient: ", self, "entropy_cost")


@dataclass(frozen=True)
class PolicyGradient(HandWritten, PolicyGradientSettings):
    """REINFORCE with V-trace's off-policy correction and a value of zero everywhere.

    The running mean of the returns is the baseline when advantages are normalised.
    """

    returns: ReturnSettings = field(default_factory=ReturnSettings)
    mask_episode_starts: bool = True

    def heads(self, num_actions: int) -> Heads:
        return Heads(flat={"logits": num_actions})

    def targets(
        self,
        rule_params: Params,
        state: RuleState,
        agent_params: Params,
        unroll: Unroll,
        target: None,
        rollout: Rollout,
        across: MeanFn,
    ) -> tuple[Targets, RuleState]:
        del rule_params, agent_params, target
        values, state = estimate_values(
            torch.zeros_like(rollout.rewards),
            unroll.predictions.logits,
            rollout,
            state,
            self.returns,
            across,
        )
        return Targets(values), state

    def loss(
        self, predictions: Predictions, targets: Targets, rollout: Rollout
    ) -> tuple[Tensor, dict[str, Tensor]]:
        logits, values = predictions.logits[:-1], targets.values
        advantage = values.normalized_advantage if self.normalize_advantage else values.advantage
        policy_loss = -log_prob(logits, rollout.actions[:-1]) * advantage
        entropies = entropy(logits)
        total = policy_loss - self.entropy_cost * entropies
        return total, {"policy": policy_loss, "entropy": entropies}

    def state_value(self, output: AgentOutput) -> None:
        del output

    def diagnostics(
        self, predictions: Predictions, targets: Targets, rollout: Rollout
    ) -> dict[str, Tensor]:
        means = {
            "entropy": entropy(predictions.logits[:-1]),
            "advantage": targets.values.advantage,
        }
        return shown_means(means, rollout)
