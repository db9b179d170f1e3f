"""The strong baseline: the target network's policy, moved by clipped advantages (CMPO)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from discorl import tree
from discorl.bounds import check_shares, check_weights
from discorl.ops.categorical import entropy, kl_divergence
from discorl.ops.losses import kl_loss
from discorl.ops.moments import MeanFn
from discorl.rules.diagnostics import shown_means
from discorl.rules.hand_written import HandWritten
from discorl.rules.improvement import STRONG, Improvement, improved_policy
from discorl.rules.values import ReturnSettings, ValueHead, estimate_action_values
from discorl.types import (
    ActionValues,
    AgentOutput,
    DiscoPredictions,
    Heads,
    Params,
    PolicyTargets,
    Reader,
    ReadUnroll,
    Rollout,
    RuleState,
)


@dataclass(frozen=True)
class CMPOSettings(Improvement):
    """The strong baseline: the target network's policy, moved by clipped advantages."""

    strength: float = STRONG.strength
    """How much an advantage of one standard deviation changes a logit of the policy's target."""
    trust: float = STRONG.trust
    """How far the advantage of a taken action is that of its return; the rest is that of its value,
    which has less noise and follows later."""
    aux_pi_cost: float = 1.0
    """Weight of predicting the policy one step ahead."""
    q_cost: float = 0.2
    """Weight of the action-value loss."""
    target_rate: float = 0.1
    """Share of the agent's parameters mixed into the target network at each update."""
    num_bins: int | None = 81
    """How many bins a categorical value has; None for a scalar one."""
    max_abs_value: float = 20.0
    """The bins cover values from minus this to plus this, on the squashed scale."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weights("cmpo: ", self, "q_cost", "aux_pi_cost")
        check_shares("cmpo: ", self, "target_rate")
        ValueHead(self.num_bins, self.max_abs_value)


@dataclass(frozen=True)
class CMPO(HandWritten, CMPOSettings):
    """Policy targets as in Muesli, from the Retrace values that discovered rules see."""

    returns: ReturnSettings = field(default_factory=ReturnSettings)
    mask_episode_starts: bool = False

    value_head: ValueHead = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "value_head", ValueHead(self.num_bins, self.max_abs_value))

    def heads(self, num_actions: int) -> Heads:
        per_action = {"aux_pi": num_actions, "q": self.value_head.size}
        return Heads({"logits": num_actions}, per_action)

    def init_state(self, agent_params: Params) -> RuleState:
        return replace(super().init_state(agent_params), target_params=agent_params)

    def reader(self, rule_params: Params) -> Reader:
        del rule_params
        return Reader(q=self.value_head.constant_value)

    def targets(
        self,
        rule_params: Params,
        state: RuleState,
        agent_params: Params,
        unroll: ReadUnroll,
        target: ReadUnroll,
        rollout: Rollout,
        across: MeanFn,
    ) -> tuple[PolicyTargets[ActionValues], RuleState]:
        del rule_params
        q_value, target_q_value = unroll.reading.q_value, target.reading.q_value
        assert q_value is not None and target_q_value is not None
        logits, target_logits = unroll.predictions.logits, target.predictions.logits
        values, state = estimate_action_values(
            q_value, target_q_value, logits, rollout, state, self.returns, across
        )
        pi = improved_policy(target_logits, values, rollout.actions, self)
        assert state.target_params is not None
        target_params = tree.lerp(state.target_params, agent_params, self.target_rate)
        targets = PolicyTargets(values, pi, target_logits)
        return targets, replace(state, target_params=target_params)

    def loss(
        self, predictions: DiscoPredictions, targets: PolicyTargets[ActionValues], rollout: Rollout
    ) -> tuple[Tensor, dict[str, Tensor]]:
        p = predictions
        assert p.q_a is not None and p.aux_pi_a is not None
        parts = {
            "pi": kl_loss(targets.pi, p.logits[:-1]),
            "aux_pi": kl_loss(p.logits[1:].detach(), p.aux_pi_a) * ~rollout.is_terminal,
            "q": self.value_head.loss(p.q_a, targets.values.q_target),
        }
        total = parts["pi"] + self.aux_pi_cost * parts["aux_pi"] + self.q_cost * parts["q"]
        return total, parts

    def state_value(self, output: AgentOutput) -> Tensor:
        assert output.q is not None
        pi = torch.softmax(output.logits.detach(), -1)
        return (pi * self.value_head.value(output.q.detach())).sum(-1)

    def diagnostics(
        self, predictions: DiscoPredictions, targets: PolicyTargets[ActionValues], rollout: Rollout
    ) -> dict[str, Tensor]:
        means = {
            "entropy": entropy(predictions.logits[:-1]),
            "pi_hat_entropy": entropy(targets.pi),
            "target_kl": kl_divergence(targets.target_logits[:-1], targets.pi),
            "q_value": targets.values.q_value,
            "q_td": targets.values.q_td,
        }
        return shown_means(means, rollout)
