"""The meta-value function: how good a policy is, for the gradient of the rule.

Each agent of a population has one. It is learnt by V-trace from the same rollouts as the agent, by
hand-written maths: the rule has no influence on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from discorl import optim, tree
from discorl.agents.agent import adam_clip
from discorl.agents.update import Each, one_agent
from discorl.bounds import check_above_0, check_shares, check_widths
from discorl.errors import DiscorlError
from discorl.nets.agent_net import HEAD_INIT_STD
from discorl.nets.build import make_torso
from discorl.nets.linear import Linear, init_params
from discorl.nets.net_config import NetConfig
from discorl.ops.moments import init_moments
from discorl.ops.step_means import live_mean
from discorl.rules.values import ReturnSettings, ValueHead, estimate_values
from discorl.types import EnvSpec, Observation, Params, Rollout, RuleState, StateValues


@tree.register
@dataclass(frozen=True)
class MetaValueState:
    """All that changes as the value function learns."""

    params: Params
    optimiser: tuple
    moments: RuleState


class ValueNet(nn.Module):
    """A torso and one number."""

    def __init__(self, torso: nn.Module, embedding_size: int) -> None:
        super().__init__()
        self.torso = torso
        self.head = Linear(embedding_size, 1, HEAD_INIT_STD)

    def forward(self, observations: Observation) -> Tensor:
        """[T, B, ...] -> [T, B, 1]"""
        num_steps = len(tree.leaves(observations)[0])
        embedding = self.torso(tree.map(lambda x: x.flatten(0, 1), observations))
        return self.head(embedding).unflatten(0, (num_steps, -1))


@dataclass(frozen=True)
class MetaValueSettings:
    """The value function that judges agents for the meta-gradient."""

    torso: tuple[int, ...] = (256, 256)
    """Layer widths of its network; convolutions are those of the agents."""
    learning_rate: float = 3e-4
    """Learning rate of its Adam."""
    discount: float = 0.997
    """Discount of the return that the rule should maximise."""
    lambda_: float = 0.95
    """Trace parameter of V-trace."""
    aligned: bool = True
    """Pair each action with the reward that followed it; False reproduces the reference's quirk of
    pairing it with the one before."""

    def __post_init__(self) -> None:
        if not self.torso:
            raise DiscorlError("meta_value: torso needs one or more layers")
        check_widths("meta_value: ", self, "torso")
        check_above_0("meta_value: ", self, "learning_rate")
        check_shares("meta_value: ", self, "discount", "lambda_")


@dataclass(frozen=True)
class MetaValue:
    """The fixed structure of a meta-value function; the defaults are the paper's."""

    net: ValueNet
    optimiser: optim.Transform = field(default_factory=lambda: adam_clip(3e-4))
    returns: ReturnSettings = field(default_factory=lambda: ReturnSettings(0.997, 0.95))
    aligned: bool = True
    """Pair each action with the reward that followed it. The reference pairs it with the one
    before; False reproduces that."""

    def init_state(
        self, generator: torch.Generator, device: torch.device | str = "cpu"
    ) -> MetaValueState:
        """A value function that has seen nothing."""
        params = {k: p.to(device) for k, p in init_params(self.net, generator).items()}
        moments = RuleState(init_moments(device), init_moments(device))
        return MetaValueState(params, self.optimiser.init(params), moments)

    def estimate(
        self, state: MetaValueState, rollout: Rollout, logits: Tensor
    ) -> tuple[StateValues, RuleState]:
        """V-trace for the policy ``logits`` [T, B, A]; everything is a constant for gradients."""
        with torch.no_grad():
            output = self._output(state.params, rollout)
        return self._estimate(output, state, rollout, logits)

    def update(
        self, state: MetaValueState, rollout: Rollout, logits: Tensor, each: Each = one_agent
    ) -> MetaValueState:
        """Learn from a rollout; with ``each = tree.vmap`` many value functions at once."""

        def loss_one(
            params: Params, state: MetaValueState, rollout: Rollout, logits: Tensor
        ) -> tuple[Tensor, RuleState]:
            output = self._output(params, rollout)
            values, moments = self._estimate(output.detach(), state, rollout, logits)
            # The head's own scale takes the normalised error as it is.
            head = output[:-1]
            target = head.detach().squeeze(-1) + values.normalized_td
            errors = ValueHead(num_bins=None, squashed=False).loss(head, target)
            return live_mean(errors, rollout.is_dead), moments

        params = {k: p.detach().requires_grad_() for k, p in state.params.items()}
        with torch.enable_grad():
            loss, moments = each(loss_one)(params, state, rollout, logits)
            gradients = torch.autograd.grad(loss.sum(), list(params.values()))
        grads = dict(zip(params, gradients, strict=True))
        updates, optimiser = each(self.optimiser.update)(grads, state.optimiser, state.params)
        new_params = {k: p + updates[k] for k, p in state.params.items()}
        return MetaValueState(new_params, optimiser, moments)

    def _output(self, params: Params, rollout: Rollout) -> Tensor:
        # Without tied weights, of which it has none: to look for them takes time.
        return functional_call(self.net, params, (rollout.observations,), tie_weights=False)

    def _estimate(
        self, output: Tensor, state: MetaValueState, rollout: Rollout, logits: Tensor
    ) -> tuple[StateValues, RuleState]:
        value = ValueHead(num_bins=None).value(output)
        if not self.aligned:
            rollout = delay_rewards(rollout)
        return estimate_values(value, logits, rollout, state.moments, self.returns)


def make_meta_value(
    settings: MetaValueSettings, spec: EnvSpec, net: NetConfig | None = None
) -> MetaValue:
    """A meta-value function for the observations of an environment, seen as the agents' ``net``
    sees them."""
    torso, size = make_torso(spec, replace(net or NetConfig(), torso=settings.torso))
    returns = ReturnSettings(settings.discount, settings.lambda_)
    optimiser = adam_clip(settings.learning_rate)
    return MetaValue(ValueNet(torso, size), optimiser, returns, settings.aligned)


def delay_rewards(rollout: Rollout) -> Rollout:
    """Rewards and discounts one step late, as the reference's meta-value function takes them."""
    if rollout.is_dead is not None:
        raise DiscorlError(
            "rewards one step late make no sense in environments that reset in a separate step: "
            "pair each action with its own reward (--meta-value.aligned)"
        )

    def late(x: Tensor) -> Tensor:
        return torch.cat([x[:1], x[:-1]])

    return replace(rollout, rewards=late(rollout.rewards), discounts=late(rollout.discounts))
