"""Starts to differentiate from, and the way back to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from discorl import tree
from discorl.types import AgentState

T = TypeVar("T")


def with_grad(tensors: T) -> T:
    """Floating tensors as a start to differentiate from."""
    return tree.map(lambda x: x.detach().requires_grad_(x.is_floating_point()), tensors)


def state_with_grad(state: AgentState) -> AgentState:
    """The state as a start to differentiate from, but for the scalars: counts and moments."""
    scalar_dims = state.rule.advantage_moments.mean.dim()  # 1 where there is an axis of agents
    return tree.map(lambda x: x.detach().requires_grad_(x.dim() > scalar_dims), state)


def vjp(pairs: Sequence[tuple[Any, Any]], inputs: T) -> T:
    """Vector-Jacobian product, a tensor for each of ``inputs``; 0 where it has no grad.

    ``pairs`` are outputs and their cotangents; None for a scalar is the cotangent 1.
    """
    outputs, cotangents = [], []
    for output, cotangent in pairs:
        tensors = tree.leaves(output)
        given = [None] * len(tensors) if cotangent is None else tree.leaves(cotangent)
        for x, c in zip(tensors, given, strict=True):
            if x.requires_grad:
                outputs.append(x)
                cotangents.append(c)
    wanted = [x for x in tree.leaves(inputs) if x.requires_grad]
    grads = iter(torch.autograd.grad(outputs, wanted, cotangents, materialize_grads=True))
    return tree.map(lambda x: next(grads) if x.requires_grad else torch.zeros_like(x), inputs)
