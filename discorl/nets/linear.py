"""Linear layers with the reference's initialisation."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from discorl.ops import native
from discorl.ops.affine import linear
from discorl.types import Layers


class Linear(nn.Linear):
    """A linear layer: weights truncated normal, bias zero.

    As in Haiku, samples beyond two standard deviations are redrawn and the deviation is not
    rescaled to make up for it; the default is 1 / sqrt(inputs).
    """

    def __init__(self, num_inputs: int, num_outputs: int, init_std: float | None = None) -> None:
        self.init_std = 1 / math.sqrt(num_inputs) if init_std is None else init_std
        super().__init__(num_inputs, num_outputs)

    def reset_parameters(self) -> None:
        """Draw new weights."""
        std = self.init_std
        if std:
            nn.init.trunc_normal_(self.weight, std=std, a=-2 * std, b=2 * std)
        else:
            nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        out = native.packed_mlp(input, self.as_layers)
        return linear(input, self.weight, self.bias) if out is None else out

    def as_layers(self) -> Layers:
        """This layer alone, as data."""
        return [(self.weight, self.bias)]


class MLP(nn.Module):
    """Linear layers with relu between them, none after the last."""

    def __init__(
        self, num_inputs: int, sizes: Sequence[int], last_init_std: float | None = None
    ) -> None:
        super().__init__()
        *pairs, last = pairwise([num_inputs, *sizes])
        self.layers = nn.ModuleList([*(Linear(*p) for p in pairs), Linear(*last, last_init_std)])

    def forward(self, x: Tensor) -> Tensor:
        if (out := native.packed_mlp(x, self.as_layers)) is not None:
            return out
        for i, layer in enumerate(self.layers):
            x = layer(torch.relu(x) if i else x)
        return x

    def as_layers(self) -> Layers:
        """The layers as data."""
        return [(layer.weight, layer.bias) for layer in self.layers]  # pyright: ignore


_drawing = threading.Lock()
"""Layers draw from the generator of the process, whichever thread they are in."""


def init_params(module: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
    """Fresh parameters for ``module``, drawn from ``generator``; the module itself is not touched.

    Every layer that has ``reset_parameters`` is redrawn; other parameters keep the values that
    their module was built with.
    """
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    fresh = copy.deepcopy(module)
    if any(p.is_meta for p in module.parameters()):  # a structure without values
        fresh = fresh.to_empty(device="cpu")
    with _drawing, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for child in fresh.modules():
            reset = getattr(child, "reset_parameters", None)
            if callable(reset):
                reset()
    return {name: p.detach() for name, p in fresh.named_parameters()}
