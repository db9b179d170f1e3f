"""The discovered rule: a meta-network says what the agent's predictions should become."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import functional_call

from discorl import tree
from discorl.bounds import check_shares, check_weights
from discorl.nets.linear import init_params
from discorl.nets.meta_features import Embeddings, experience
from discorl.nets.meta_net import JoinedMLPs, MetaNet, MetaNetSizes
from discorl.ops.categorical import entropy, kl_divergence
from discorl.ops.losses import kl_loss
from discorl.ops.moments import MeanFn, init_moments
from discorl.rules.diagnostics import shown_means
from discorl.rules.improvement import Improvement, improved_policy
from discorl.rules.values import (
    ReturnSettings,
    ValueHead,
    estimate_read_values,
)
from discorl.types import (
    ActionValues,
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
    """The rule of the paper; the defaults are Disco103's.

    A rule can lack parts: y and z, or the lifetime LSTM (``sizes``), the action values
    (``value_head``), and the auxiliary prediction. Its agents lack their heads, then.
    """

    sizes: MetaNetSizes = field(default_factory=MetaNetSizes)
    value_head: ValueHead | None = field(default_factory=ValueHead)
    """How q represents a value; None if agents have no q and the rule sees no values."""
    returns: ReturnSettings = field(default_factory=ReturnSettings)
    settings: DiscoSettings = field(default_factory=DiscoSettings)
    mask_episode_starts: bool = True
    """Whether its agents leave the first step of each episode out of the loss. Disco103's do."""
    auxiliary: bool = True
    """Whether its agents predict their policy one step ahead."""
    prior: Improvement | None = None
    """The hand-written target that the network adds to, as logits: pi-hat is the improved policy
    with learnt strength and trust, plus what the network says; y-hat and z-hat are y and z plus
    that."""

    net: MetaNet = field(init=False, repr=False, compare=False)

    is_stepwise: ClassVar[bool] = True
    """The loss of a step is a function of that step's predictions alone."""

    def __post_init__(self) -> None:
        with torch.device("meta"):  # structure only: parameters are always passed in
            net = MetaNet(self.sizes, self.value_head is not None, self.prior is not None)
            object.__setattr__(self, "net", net)

    @property
    def missing(self) -> tuple[str, ...]:
        """The parts that it lacks, by the names that they have among the settings of discovery."""
        has = {
            "predictions": self.sizes.has_predictions,
            "value": self.value_head is not None,
            "auxiliary": self.auxiliary,
            "lifetime": self.sizes.has_lifetime,
        }
        return tuple(name for name, present in has.items() if not present)

    def heads(self, num_actions: int) -> Heads:
        flat = {"logits": num_actions, "y": self.sizes.prediction}
        per_action = {
            "z": self.sizes.prediction,
            "aux_pi": num_actions if self.auxiliary else 0,
            "q": self.value_head.size if self.value_head else 0,
        }
        return Heads(*({k: n for k, n in sizes.items() if n} for sizes in (flat, per_action)))

    def init_params(self, generator: torch.Generator) -> Params:
        return init_params(self.net, generator)

    def init_state(self, agent_params: Params) -> RuleState:
        like = next(iter(agent_params.values()))
        zeros = like.new_zeros(self.sizes.lifetime_hidden)
        return RuleState(
            advantage_moments=init_moments(like.device),
            td_moments=init_moments(like.device),
            lifetime_rnn=LSTMState(zeros, zeros) if self.sizes.has_lifetime else None,
            target_params=agent_params,
        )

    def reader(self, rule_params: Params) -> Reader:
        networks = ("trajectory", "lifetime") if self.sizes.has_lifetime else ("trajectory",)
        y = z = None
        if self.sizes.has_predictions:
            y, z = (JoinedMLPs(rule_params, *(f"{n}.{x}" for n in networks)) for x in "yz")
        return Reader(y, z, self.value_head.constant_value if self.value_head else None)

    def targets(
        self,
        rule_params: Params,
        state: RuleState,
        agent_params: Params,
        unroll: ReadUnroll[DiscoPredictions],
        target: ReadUnroll,
        rollout: Rollout,
        across: MeanFn,
    ) -> tuple[DiscoTargets, RuleState]:
        assert state.target_params is not None
        online, of_target, logits = unroll.reading, target.reading, unroll.predictions.logits
        target_logits = target.predictions.logits

        values, state = estimate_read_values(
            online, of_target, logits, rollout, state, self.returns, across
        )
        seen = values if isinstance(values, ActionValues) else None
        read = zip(online.y, of_target.y, online.z, of_target.z, strict=True)
        out = functional_call(
            self.net,
            rule_params,
            (
                experience(logits, target_logits, rollout, seen),
                [Embeddings(*each) for each in read],
                state.lifetime_rnn,
                across,
            ),
            tie_weights=False,  # there are none, and looking for them takes time
        )
        pi, y, z = out.pi, out.y, out.z
        if self.prior is not None and out.log_strength is not None:
            strength = out.log_strength.exp()
            prior = improved_policy(
                *(target_logits, values, rollout.actions, self.prior, strength, out.more_trust)
            )
            pi = prior + pi
            # A prediction that is its own target stays as it is.
            y, z = _sum(unroll.predictions.y, y), _sum(unroll.predictions.z_a, z)
        targets = DiscoTargets(
            values=values,
            pi=pi,
            y=y,
            z=z,
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
        parts = {"pi": kl_loss(targets.pi, p.logits[:-1])}
        total = c.pi_cost * parts["pi"]
        if targets.y is not None and targets.z is not None:
            assert p.y is not None and p.z_a is not None
            parts |= {"y": kl_loss(targets.y, p.y), "z": kl_loss(targets.z, p.z_a)}
            total = total + c.y_cost * parts["y"] + c.z_cost * parts["z"]
        if self.auxiliary:
            assert p.aux_pi_a is not None
            # The policy one step ahead; there is none after an episode ends.
            ahead = kl_loss(p.logits[1:].detach(), p.aux_pi_a)
            parts["aux_pi"] = ahead * ~rollout.is_terminal
            total = total + c.aux_pi_cost * parts["aux_pi"]
        if self.value_head is not None:
            assert p.q_a is not None and isinstance(targets.values, ActionValues)
            parts["q"] = self.value_head.loss(p.q_a, targets.values.q_target)
            total = total + c.q_cost * parts["q"]
        return total, parts

    def state_value(self, output: AgentOutput) -> Tensor | None:
        if self.value_head is None:
            return None
        assert output.q is not None
        pi = torch.softmax(output.logits.detach(), -1)
        return (pi * self.value_head.value(output.q.detach())).sum(-1)

    def diagnostics(
        self, predictions: DiscoPredictions, targets: DiscoTargets, rollout: Rollout
    ) -> dict[str, Tensor]:
        p, v = predictions, targets.values
        of_q = v if isinstance(v, ActionValues) else None
        means = {
            "logits": p.logits[:-1],
            "entropy": entropy(p.logits[:-1]),
            "y_entropy": None if p.y is None else entropy(p.y),
            "z_entropy": None if p.z_a is None else entropy(p.z_a),
            "aux_pi_entropy": None if p.aux_pi_a is None else entropy(p.aux_pi_a),
            "next_policy_entropy": entropy(p.logits[1:]),
            "pi_hat": targets.pi,
            "pi_hat_entropy": entropy(targets.pi),
            "target_kl": kl_divergence(targets.target_logits[:-1], targets.pi),
            "y": p.y,
            "y_hat": targets.y,
            "z_hat": targets.z,
            "q_value": of_q and of_q.q_value,
            "q_target": of_q and of_q.q_target,
            "q_td": of_q and of_q.q_td,
            "normalized_q_td": of_q and of_q.normalized_q_td,
        }
        return shown_means({k: x for k, x in means.items() if x is not None}, rollout)


def _sum(prediction: Tensor | None, change: Tensor | None) -> Tensor | None:
    return None if prediction is None or change is None else prediction + change
