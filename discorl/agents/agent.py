"""An agent: a network, the rule that trains it, and the optimiser that moves it."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from discorl import optim, tree
from discorl.agents.network import Network, check_heads
from discorl.errors import DiscorlError
from discorl.nets.agent_net import AgentNet
from discorl.nets.build import embedding_size, make_torso
from discorl.nets.linear import init_params
from discorl.nets.lstm import LSTM
from discorl.nets.net_config import NetConfig
from discorl.nets.torsos import MLPTorso
from discorl.ops import native
from discorl.rules.base import UpdateRule
from discorl.types import AgentState, EnvSpec, Memory


@dataclass(frozen=True)
class Agent:
    """The fixed structure of an agent. What changes is its ``AgentState``."""

    net: Network
    rule: UpdateRule
    optimiser: optim.Transform
    burn_in: int = 0
    """First steps of a rollout that only warm up a recurrent network's state and have no loss."""
    native: bool = False
    """Learn with the kernels of ``ops/native``, where they apply: one agent on the CPU."""
    bf16: bool = False
    """Round the factors of large matrix products to bfloat16, in acting and learning. Sums and
    everything else stay as they are. Meta-gradients are out of the question."""

    def acting(self) -> AbstractContextManager[None]:
        """What its network has to be called in to act."""
        return native.acting(self.native, self.bf16)

    def __post_init__(self) -> None:
        if self.native:
            native.build()
        num_actions = getattr(self.net, "num_actions", 0)
        check_heads(self.net, self.rule.heads(num_actions))
        if self.burn_in < 0:
            raise DiscorlError(f"burn_in must be 0 or more steps, not {self.burn_in}")
        if self.burn_in and self.net.initial_memory(1) is None:
            raise DiscorlError(
                "burn_in warms up a memory, but the network has none: set burn_in to 0, or add a "
                "core with --net.core-lstm"
            )

    def init_state(
        self, generator: torch.Generator, device: torch.device | str = "cpu"
    ) -> AgentState:
        """A newborn agent."""
        params = init_params(cast("nn.Module", self.net), generator)
        params = tree.to(params, device)
        return AgentState(params, self.optimiser.init(params), self.rule.init_state(params))

    def initial_memory(self, num_envs: int, device: torch.device | str = "cpu") -> Memory:
        """The memory that a recurrent agent starts acting with; None for others."""
        return tree.to(self.net.initial_memory(num_envs), device)


def adam_clip(
    learning_rate: float | optim.Schedule, max_abs_update: float = 1.0, weight_decay: float = 0.0
) -> optim.Transform:
    """The reference's optimiser: Adam, **then** clip each element, then the learning rate.

    Weight decay is decoupled: it is added after the clip, which bounds only Adam's step.
    """
    decay = (optim.add_decayed_weights(weight_decay),) if weight_decay else ()
    return optim.chain(
        optim.scale_by_adam(),
        optim.clip(max_abs_update),
        *decay,
        optim.scale_by_learning_rate(learning_rate),
    )


def agent_net(
    spec: EnvSpec,
    rule: UpdateRule,
    net: NetConfig | None = None,
    torso: nn.Module | None = None,
) -> AgentNet:
    """The network for an environment and a rule; ``torso`` can be your own, see ``Torso``."""
    net = net or NetConfig()
    if torso is None:
        torso, size = make_torso(spec, net)
    else:
        size = embedding_size(torso)
    return AgentNet(
        torso,
        size,
        spec.num_actions,
        rule.heads(spec.num_actions),
        net.action_lstm,
        net.head_hidden,
        LSTM(size, net.core_lstm) if net.core_lstm else None,
        zero_values=net.zero_values,
    )


def mlp_agent_net(
    spec: EnvSpec,
    rule: UpdateRule,
    torso: tuple[int, ...] = (512, 512),
    lstm_size: int = 128,
    head_hidden: tuple[int, ...] = (128,),
) -> AgentNet:
    """The reference's network for an environment and a rule."""
    shapes = [spec.observation_shape]
    if spec.observations is not None:
        shapes = [x.shape for x in spec.observations.values()]
    num_inputs = sum(math.prod(shape) for shape in shapes)
    sizes = NetConfig(torso, lstm_size, head_hidden)
    return agent_net(spec, rule, sizes, MLPTorso(num_inputs, torso))
