"""An agent: a network, the rule that trains it, and the optimiser that moves it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from discorl import optim, tree
from discorl.agents.memory import is_recurrent
from discorl.errors import DiscorlError
from discorl.nets.agent_net import AgentNet, check_heads
from discorl.nets.build import embedding_size, make_torso
from discorl.nets.linear import init_params
from discorl.nets.lstm import LSTM
from discorl.nets.net_config import NetConfig
from discorl.nets.torsos import MLPTorso
from discorl.ops import native
from discorl.rules.base import UpdateRule
from discorl.types import AgentState, EnvSpec, LSTMState


@dataclass(frozen=True)
class Agent:
    """The fixed structure of an agent. What changes is its ``AgentState``."""

    net: nn.Module
    rule: UpdateRule
    optimiser: optim.Transform
    burn_in: int = 0
    """First steps of a rollout that only warm up the state of a recurrent network, without loss."""
    native: bool = False
    """Learn with the kernels of ``ops/native``, where they apply: one agent on the CPU."""

    def __post_init__(self) -> None:
        if self.native:
            native.build()
        num_actions = getattr(self.net, "num_actions", 0)
        check_heads(self.net, self.rule.heads(num_actions))
        if self.burn_in < 0:
            raise DiscorlError(f"burn_in must be 0 or more steps, not {self.burn_in}")
        if self.burn_in and not is_recurrent(self.net):
            raise DiscorlError(
                "burn_in warms up a memory, but the network has none: set burn_in to 0, or give "
                "the network a core with --net.core-lstm"
            )

    def init_state(
        self, generator: torch.Generator, device: torch.device | str = "cpu"
    ) -> AgentState:
        """A newborn agent."""
        params = {k: p.to(device) for k, p in init_params(self.net, generator).items()}
        return AgentState(params, self.optimiser.init(params), self.rule.init_state(params))

    def zero_state(self, num_envs: int, device: torch.device | str = "cpu") -> LSTMState | None:
        """The memory with which a recurrent agent begins to act; None for others."""
        if not is_recurrent(self.net):
            return None
        return tree.to(self.net.zero_state(num_envs), device)  # pyright: ignore[reportCallIssue]


def adam_clip(
    learning_rate: float | optim.Schedule, max_abs_update: float = 1.0, weight_decay: float = 0.0
) -> optim.Transform:
    """The reference's optimiser: Adam, **then** clip each element, then the learning rate.

    Weight decay is decoupled: it joins after the clip, so that the clip bounds Adam's step alone.
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
    """The network for an environment and a rule; ``torso`` is one of your own, see ``Torso``."""
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
    return AgentNet(
        MLPTorso(num_inputs, torso),
        torso[-1],
        spec.num_actions,
        rule.heads(spec.num_actions),
        lstm_size,
        head_hidden,
    )
