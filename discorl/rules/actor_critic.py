"""The actor-critic baseline: V-trace, a categorical or scalar value, an entropy bonus."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from discorl.bounds import check_numbers, check_weights
from discorl.errors import DiscorlError
from discorl.ops.categorical import entropy, log_prob
from discorl.ops.moments import MeanFn
from discorl.rules.diagnostics import shown_means
from discorl.rules.hand_written import HandWritten
from discorl.rules.values import ReturnSettings, ValueHead, estimate_values
from discorl.types import (
    AgentOutput,
    Heads,
    Params,
    Predictions,
    Rollout,
    RuleState,
    StateValues,
    Targets,
    Unroll,
    ValuePredictions,
)


@dataclass(frozen=True)
class ActorCriticSettings:
    """The actor-critic baseline."""

    policy_cost: float = 1.0
    """Weight of the policy gradient."""
    value_cost: float = 0.5
    """Weight of the value loss."""
    entropy_cost: float = 0.2
    """Weight of the entropy bonus."""
    num_bins: int | None = 601
    """How many bins a categorical value has; None for a scalar one."""
    max_abs_value: float = 300.0
    """The bins cover values from minus this to plus this, on the squashed scale."""
    normalize_advantage: bool = False
    """Scale advantages by their running mean and deviation."""
    normalize_td: bool = False
    """Scale value errors by their running deviation (scalar values only)."""

    def __post_init__(self) -> None:
        check_weights("actor_critic: ", self, "policy_cost", "value_cost")
        check_numbers("actor_critic: ", self, "entropy_cost")
        ValueHead(self.num_bins, self.max_abs_value)
        if self.normalize_td and self.num_bins:
            raise DiscorlError(
                "normalize_td needs a scalar value: set num_bins to None or normalize_td to False"
            )


@dataclass(frozen=True)
class ActorCritic(HandWritten, ActorCriticSettings):
    """Policy gradient on V-trace advantages; the defaults are the reference's."""

    returns: ReturnSettings = field(default_factory=ReturnSettings)
    mask_episode_starts: bool = True

    value_head: ValueHead = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "value_head", ValueHead(self.num_bins, self.max_abs_value))

    def heads(self, num_actions: int) -> Heads:
        return Heads(flat={"logits": num_actions, "v": self.value_head.size})

    def targets(
        self,
        rule_params: Params,
        state: RuleState,
        agent_params: Params,
        unroll: Unroll[ValuePredictions],
        target: None,
        rollout: Rollout,
        across: MeanFn,
    ) -> tuple[Targets[StateValues], RuleState]:
        del rule_params, agent_params, target
        value = self.value_head.value(unroll.predictions.v.detach())
        logits = unroll.predictions.logits
        values, state = estimate_values(value, logits, rollout, state, self.returns, across)
        return Targets(values), state

    def loss(
        self, predictions: ValuePredictions, targets: Targets[StateValues], rollout: Rollout
    ) -> tuple[Tensor, dict[str, Tensor]]:
        logits, values = predictions.logits[:-1], targets.values
        td = values.normalized_td if self.normalize_td else values.td
        advantage = values.normalized_advantage if self.normalize_advantage else values.advantage
        policy_loss = -log_prob(logits, rollout.actions[:-1]) * advantage
        value_loss = self.value_head.loss(predictions.v[:-1], values.value[:-1] + td)
        entropies = entropy(logits)
        total = (
            self.policy_cost * policy_loss
            + self.value_cost * value_loss
            - self.entropy_cost * entropies
        )
        return total, {"policy": policy_loss, "value": value_loss, "entropy": entropies}

    def state_value(self, output: AgentOutput) -> Tensor:
        assert output.v is not None
        return self.value_head.value(output.v.detach())

    def diagnostics(
        self, predictions: Predictions, targets: Targets, rollout: Rollout
    ) -> dict[str, Tensor]:
        means = {
            "logits": predictions.logits[:-1],
            "entropy": entropy(predictions.logits[:-1]),
            "advantage": targets.values.advantage,
            "value": targets.values.value,
        }
        return shown_means(means, rollout)
