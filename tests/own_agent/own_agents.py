"""Agents and environments as users write them, for the tests of the drop-in API."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from discorl.nets.agent_net import AgentNet
from discorl.own_agent import DiscoUpdateRule
from discorl.rules.base import UpdateRule
from discorl.types import AgentOutput, Heads, Params
from tests.builders import random_rule_params, small_disco

NUM_ACTIONS = 3


def small_rule(rule: UpdateRule | None = None, params: Params | None = None) -> DiscoUpdateRule:
    rule = rule or small_disco()
    return DiscoUpdateRule(rule, random_rule_params(rule) if params is None else params)


class Outputs(nn.Module):
    """One linear layer for all heads, cut to shape."""

    def __init__(self, num_inputs: int, heads: Heads) -> None:
        super().__init__()
        num_actions = heads.flat["logits"]
        self.shapes = {name: (size,) for name, size in heads.flat.items()}
        self.shapes |= {name: (num_actions, size) for name, size in heads.per_action.items()}
        self.layers = nn.ModuleDict(
            {k: nn.Linear(num_inputs, int(np.prod(shape))) for k, shape in self.shapes.items()}
        )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {k: layer(x).unflatten(-1, self.shapes[k]) for k, layer in self.layers.items()}


class PlainAgent(nn.Module):
    """Without memory: ``forward(obs) -> dict``."""

    def __init__(self, heads: Heads, num_inputs: int = 4, middle: nn.Module | None = None) -> None:
        super().__init__()
        self.torso = nn.Linear(num_inputs, 8)
        self.middle = middle or nn.Identity()
        self.heads = Outputs(8, heads)

    def forward(self, obs: Tensor) -> dict[str, Tensor]:
        return self.heads(self.middle(torch.tanh(self.torso(obs.flatten(1)))))


class TypedAgent(PlainAgent):
    """Returns our own type."""

    def forward(self, obs: Tensor) -> AgentOutput:  # pyright: ignore
        return AgentOutput(**super().forward(obs))


class RecurrentAgent(nn.Module):
    """With memory: ``forward(obs, state) -> (dict, state)``."""

    def __init__(self, heads: Heads, num_inputs: int = 4, hidden: int = 5) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(num_inputs, hidden)
        self.first = nn.Parameter(0.3 * torch.randn(hidden))
        self.heads = Outputs(hidden, heads)

    def initial_state(self, batch_size: int) -> tuple[Tensor, Tensor]:
        start = self.first.expand(batch_size, -1)
        return start, torch.zeros_like(start)

    def forward(self, obs: Tensor, state: Any) -> tuple[dict[str, Tensor], Any]:
        hidden, cell = self.cell(obs.flatten(1), state)
        return self.heads(hidden), (hidden, cell)


class WrappedNet(nn.Module):
    """An ``AgentNet`` seen from outside: one forward pass, all heads."""

    def __init__(self, net: AgentNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, obs: Tensor) -> dict[str, Tensor | None]:
        return dict(vars(self.net.output(obs)))


class Corridor:
    """Walk to the right end. NumPy, vectorised, resets itself, and reuses its buffers."""

    def __init__(self, num_envs: int = 2, length: int = 4) -> None:
        self.num_envs, self.length = num_envs, length
        self.place = np.zeros(num_envs, int)
        self._obs = np.zeros((num_envs, length), np.float64)

    def obs(self) -> np.ndarray:
        self._obs[:] = np.eye(self.length)[self.place]
        return self._obs

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert actions.dtype == np.int64 and actions.shape == (self.num_envs,)
        self.place = np.clip(self.place + actions - 1, 0, self.length - 1)
        dones = self.place == self.length - 1
        self.place[dones] = 0
        return dones.astype(np.float64), dones

    def step_fn(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rewards, dones = self.step(actions)
        return self.obs(), rewards, dones
