"""An agent: a network, the rule that trains it, and the optimiser that moves it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from discorl import optim
from discorl.nets.agent_net import AgentNet, check_heads
from discorl.nets.linear import init_params
from discorl.nets.torsos import MLPTorso
from discorl.rules.base import UpdateRule
from discorl.types import AgentState, EnvSpec


@dataclass(frozen=True)
class Agent:
    """The fixed structure of an agent. What changes is its ``AgentState``."""

    net: nn.Module
    rule: UpdateRule
    optimiser: optim.Transform
    mask_episode_starts: bool = True
    """Leave the first step of each episode out of the loss, as the reference does. Switch it off
    where episodes are a step or two long: the first action would never be learnt from."""

    def __post_init__(self) -> None:
        num_actions = getattr(self.net, "num_actions", 0)
        check_heads(self.net, self.rule.heads(num_actions))

    def init_state(
        self, generator: torch.Generator, device: torch.device | str = "cpu"
    ) -> AgentState:
        """A newborn agent."""
        params = {k: p.to(device) for k, p in init_params(self.net, generator).items()}
        return AgentState(params, self.optimiser.init(params), self.rule.init_state(params))


def adam_clip(
    learning_rate: float | optim.Schedule, max_abs_update: float = 1.0
) -> optim.Transform:
    """The reference's optimiser: Adam, **then** clip each element, then the learning rate."""
    return optim.chain(
        optim.scale_by_adam(),
        optim.clip(max_abs_update),
        optim.scale_by_learning_rate(learning_rate),
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
