"""Predictions of hundreds of logits, of which only a few numbers are wanted."""

from __future__ import annotations

import torch
from torch import Tensor

from discorl.ops import native
from discorl.ops.affine import add_product, linear
from discorl.types import Layers


def mlp(x: Tensor, layers: Layers) -> Tensor:
    """The MLP of these layers; without any, ``x`` itself."""
    for i, (weight, bias) in enumerate(layers):
        x = linear(torch.relu(x) if i else x, weight, bias)
    return x


def softmax_linear(x: Tensor, layers: Layers, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(mlp(x)) @ weight + bias. ``x`` [R, D], ``weight`` [K, E], ``bias`` [E] -> [R, E]"""
    if native.apply_to(x, weight):
        weights, biases = ([layer[i] for layer in layers] for i in (0, 1))
        many = native.round_from()
        return torch.ops.discorl.softmax_linear(x, weights, biases, weight, bias, many)
    probabilities = torch.softmax(mlp(x, layers), -1)
    if weight.shape[1] > 1 and native.rounds(len(weight)):  # an expectation needs all digits
        return linear(probabilities, weight.T, bias)
    return probabilities @ weight if bias is None else add_product(bias, probabilities, weight)
