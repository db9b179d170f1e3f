"""Torsos: from observations to an embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from discorl.nets.linear import MLP
from discorl.types import Observation


class Torso(Protocol):
    """Any ``nn.Module`` that turns observations [N, ...] into embeddings [N, embedding_size].

    Your own takes only a few lines:

        class MyTorso(nn.Module):
            embedding_size = 64
            def __init__(self):
                super().__init__()
                self.layers = nn.Sequential(nn.Flatten(), nn.Linear(16, 64), nn.ReLU())
            def forward(self, observation):
                return self.layers(observation)

        net = agent_net(spec, rule, torso=MyTorso())

    Images come channels first, in the dtype of the environment; ``network_input`` scales them.
    If the environment has Dict observations, ``observation`` is a dict of tensors. Layers with
    ``reset_parameters`` are redrawn for each agent; other parameters keep their values. Do not use
    batch normalisation or other layers that change their own state, nor activation checkpointing:
    the second run would find other parameters.
    """

    embedding_size: int

    def __call__(self, observation: Tensor, /) -> Tensor: ...


def network_input(observation: Tensor, net: nn.Module) -> Tensor:
    """The observation in the number type of ``net``'s parameters; uint8 is scaled to [0, 1]."""
    x = observation.to(next(net.parameters()).dtype)
    return x / 255 if observation.dtype == torch.uint8 else x


class MLPTorso(nn.Module):
    """Flattens the observation, then an MLP with no activation after its last layer.

    Several tensors are joined in the order of their names; bytes become numbers from 0 to 1.
    """

    def __init__(self, num_inputs: int, sizes: Sequence[int] = (512, 512)) -> None:
        super().__init__()
        self.mlp = MLP(num_inputs, sizes)
        self.embedding_size = sizes[-1]

    def forward(self, observation: Observation) -> Tensor:
        if isinstance(observation, dict):
            parts = [self._input(x) for _, x in sorted(observation.items())]
            return self.mlp(torch.cat(parts, -1))
        return self.mlp(self._input(observation))

    def _input(self, x: Tensor) -> Tensor:
        """[N, ...], or one number each [N], as rows."""
        rows = x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)
        return network_input(rows, self.mlp.layers[0])
