"""The discovered rule: a meta-network says what the agent's predictions should become."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.func import functional_call

from discorl import tree
from discorl.bounds import check_shares, check_weights
from discorl.nets.linear import init_params
from discorl.nets.meta_features import Embeddings, experience
from discorl.nets.meta_net import MetaNet, MetaNetSizes, PairedMLP
from discorl.ops.categorical import entropy, kl_divergence
from discorl.ops.losses import kl_loss
from discorl.ops.moments import MeanFn, init_moments
from discorl.ops.step_means import live_mean
from discorl.rules.values import ReturnSettings, ValueHead, estimate_action_values
from discorl.types import (
    AgentOutput,
    DiscoPredictions,
    DiscoTargets,
    Heads,
    LSTMState,
    Params,
    Reader,
    ReadUnroll,
    Rollout,
    RuleState,
)


@dataclass(frozen=True)
class DiscoSettings:
    """The discovered rule. Its network is fixed; these weight what it says."""

    pi_cost: float = 1.0
    """Weight of the policy target."""
    y_cost: float = 1.0
    """Weight of the target for y."""
    z_cost: float = 1.0
    """Weight of the target for z."""
    aux_pi_cost: float = 1.0
    """Weight of predicting the policy one step ahead."""
    q_cost: float = 0.2
    """Weight of the action-value loss."""
    target_rate: float = 0.1
    """Share of the agent's parameters mixed into the target network at each update."""

    def __post_init__(self) -> None:
        costs = (name for name in self.__dataclass_fields__ if name.endswith("_cost"))
        check_weights("disco: ", self, *costs)
        check_shares("disco: ", self, "target_rate")


@dataclass(frozen=True)
class DiscoRule:
    """The rule of the paper; the defaults are Disco103's."""

    sizes: MetaNetSizes = field(default_factory=MetaNetSizes)
    value_head: ValueHead = field(default_factory=ValueHead)
    returns: ReturnSettings = field(default_factory=ReturnSettings)
    settings: DiscoSettings = field(default_factory=DiscoSettings)
    mask_episode_starts: bool = True
    """Whether its agents leave the first step of each episode out of the loss. Disco103's do."""

    net: MetaNet = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        with torch.device("meta"):  # structure only: parameters are always passed in
            object.__setattr__(self, "net", MetaNet(self.sizes))

    def heads(self, num_actions: int) -> Heads:
        return Heads(
            flat={"logits": num_actions, "y": self.sizes.prediction},
            per_action={
                "z": self.sizes.prediction,
                "aux_pi": num_actions,
                "q": self.value_head.size,
            },
        )

    def init_params(self, generator: torch.Generator) -> Params:
        return init_params(self.net, generator)

    def init_state(self, agent_params: Params) -> RuleState:
        like = next(iter(agent_params.values()))
        zeros = like.new_zeros(self.sizes.lifetime_hidden)
        return RuleState(
            advantage_moments=init_moments(like.device),
            td_moments=init_moments(like.device),
            lifetime_rnn=LSTMState(zeros, zeros),
            target_params=agent_params,
        )

    def reader(self, rule_params: Params) -> Reader:
        return Reader(
            y=PairedMLP(rule_params, "trajectory.y", "lifetime.y"),
            z=PairedMLP(rule_params, "trajectory.z", "lifetime.z"),
            q=self.value_head.constant_value,
        )

    def targets(
        self,
        rule_params: Params,
        state: RuleState,
        agent_params: Params,
        unroll: ReadUnroll,
        target: ReadUnroll,
        rollout: Rollout,
        across: MeanFn,
    ) -> tuple[DiscoTargets, RuleState]:
        assert state.target_params is not None and state.lifetime_rnn is not None
        online, of_target, logits = unroll.reading, target.reading, unroll.predictions.logits
        target_logits = target.predictions.logits

        values, state = estimate_action_values(
            online.q_value, of_target.q_value, logits, rollout, state, self.returns, across
        )
        embeddings = Embeddings(online.y, of_target.y, online.z, of_target.z)
        lifetime_embeddings = Embeddings(
            online.y_lifetime, of_target.y_lifetime, online.z_lifetime, of_target.z_lifetime
        )
        out = functional_call(
            self.net,
            rule_params,
            (
                experience(logits, target_logits, rollout, values),
                embeddings,
                lifetime_embeddings,
                state.lifetime_rnn,
                across,
            ),
        )
        targets = DiscoTargets(
            values=values,
            pi=out.pi,
            y=out.y,
            z=out.z,
            lifetime_input=out.lifetime_input,
            target_logits=target_logits,
        )
        # The target follows the parameters from before this update.
        target_params = tree.lerp(state.target_params, agent_params, self.settings.target_rate)
        return targets, replace(state, lifetime_rnn=out.lifetime_rnn, target_params=target_params)

    def loss(
        self, predictions: DiscoPredictions, targets: DiscoTargets, rollout: Rollout
    ) -> tuple[Tensor, dict[str, Tensor]]:
        p, c = predictions, self.settings
        pi_loss = kl_loss(targets.pi, p.logits[:-1])
        y_loss = kl_loss(targets.y, p.y)
        z_loss = kl_loss(targets.z, p.z_a)
        # The policy one step ahead; there is none after an episode ends.
        aux_pi_loss = kl_loss(p.logits[1:].detach(), p.aux_pi_a)
        aux_pi_loss = aux_pi_loss * ~rollout.is_terminal
        q_loss = self.value_head.loss(p.q_a, targets.values.q_target)

        total = c.pi_cost * pi_loss + c.y_cost * y_loss + c.z_cost * z_loss
        total = total + c.aux_pi_cost * aux_pi_loss + c.q_cost * q_loss
        parts = {"pi": pi_loss, "y": y_loss, "z": z_loss, "aux_pi": aux_pi_loss, "q": q_loss}
        return total, parts

    def state_value(self, output: AgentOutput) -> Tensor:
        assert output.q is not None
        pi = torch.softmax(output.logits.detach(), -1)
        return (pi * self.value_head.value(output.q.detach())).sum(-1)

    def diagnostics(
        self, predictions: DiscoPredictions, targets: DiscoTargets, rollout: Rollout
    ) -> dict[str, Tensor]:
        p, v = predictions, targets.values
        means = {
            "logits": p.logits[:-1],
            "entropy": entropy(p.logits[:-1]),
            "y_entropy": entropy(p.y),
            "z_entropy": entropy(p.z_a),
            "aux_pi_entropy": entropy(p.aux_pi_a),
            "next_policy_entropy": entropy(p.logits[1:]),
            "pi_hat": targets.pi,
            "pi_hat_entropy": entropy(targets.pi),
            "target_kl": kl_divergence(targets.target_logits[:-1], targets.pi),
            "y": p.y,
            "y_hat": targets.y,
            "z_hat": targets.z,
            "q_value": v.q_value,
            "q_target": v.q_target,
            "q_td": v.q_td,
            "normalized_q_td": v.normalized_q_td,
        }
        return {name: live_mean(x, rollout.is_dead) for name, x in means.items()}
