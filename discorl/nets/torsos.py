"""Torsos: from observations to an embedding."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from discorl.nets.linear import MLP


class MLPTorso(nn.Module):
    """Flattens the observation, then an MLP with no activation after its last layer."""

    def __init__(self, num_inputs: int, sizes: Sequence[int] = (512, 512)) -> None:
        super().__init__()
        self.mlp = MLP(num_inputs, sizes)
        self.embedding_size = sizes[-1]

    def forward(self, observation: Tensor) -> Tensor:
        return self.mlp(observation.flatten(1))
