"""Torsos: from observations to an embedding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from discorl.nets.linear import MLP
from discorl.types import Observation


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
            parts = [_flat(observation[name]) for name in sorted(observation)]
            return self.mlp(torch.cat(parts, -1))
        return self.mlp(_flat(observation))


def _flat(x: Tensor) -> Tensor:
    return x.flatten(1) / 255 if x.dtype == torch.uint8 else x.flatten(1)
