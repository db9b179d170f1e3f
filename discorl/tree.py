"""Maps over nested dataclasses, tuples and dicts of tensors. The only user of torch's pytree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from discorl import types

Tree = TypeVar("Tree")

for _cls in (
    types.TimeStep,
    types.Rollout,
    types.AgentOutput,
    types.Predictions,
    types.ValuePredictions,
    types.DiscoPredictions,
    types.Reading,
    types.Unroll,
    types.ReadUnroll,
    types.Moments,
    types.Values,
    types.StateValues,
    types.ActionValues,
    types.Targets,
    types.PolicyTargets,
    types.DiscoTargets,
    types.RuleState,
    types.AgentState,
    types.UpdateInfo,
):
    pytree.register_dataclass(_cls)


def register(cls: type[Tree]) -> type[Tree]:
    """Let the functions here look into a dataclass that another layer defines."""
    pytree.register_dataclass(cls)
    return cls


def map(fn: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Apply ``fn`` to the tensors of ``tree`` (and of trees of the same shape); None stays None."""
    return pytree.tree_map(lambda x, *xs: x if x is None else fn(x, *xs), tree, *rest)


def leaves(tree: Any) -> list[Tensor]:
    """The tensors of ``tree`` in a fixed order."""
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, Tensor)]


def stack(trees: Sequence[Tree], dim: int = 0) -> Tree:
    """Join trees of equal shape along a new dimension."""
    return map(lambda *xs: torch.stack(xs, dim), *trees)


def index(tree: Tree, key: Any) -> Tree:
    """Index every tensor alike."""
    return map(lambda x: x[key], tree)


def detach(tree: Tree) -> Tree:
    """Cut every tensor out of the autograd graph."""
    return map(Tensor.detach, tree)


def to(tree: Tree, device: torch.device | str) -> Tree:
    """Move every tensor to ``device``."""
    return map(lambda x: x.to(device), tree)


def where(mask: Tensor, new: Tree, otherwise: Tree | None = None) -> Tree:
    """``new`` where the mask holds, elsewhere ``otherwise`` or 0, even in place of NaN.

    ``mask`` has the leading dimensions of every tensor, such as [P] of [P, ...].
    """

    def one(x: Tensor, y: Tensor | None = None) -> Tensor:
        wide = mask.reshape(mask.shape + (1,) * (x.dim() - mask.dim()))
        return torch.where(wide, x, torch.zeros_like(x) if y is None else y)

    return map(one, new) if otherwise is None else map(one, new, otherwise)


def lerp(old: Tree, new: Tree, weight: float) -> Tree:
    """``(1 - weight) * old + weight * new`` for every tensor."""
    return map(lambda a, b: torch.lerp(a, b, weight), old, new)


def vmap(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` of one, applied to many: trees of tensors [P, ...] in and out; None stays None.

    ``torch.vmap`` alone takes neither our dataclasses nor None.
    """

    def many(*args: Any) -> Any:
        flat, structure = pytree.tree_flatten(args)
        places = [i for i, x in enumerate(flat) if isinstance(x, Tensor)]
        result: list[Any] = []

        def one(*tensors: Tensor) -> list[Tensor]:
            filled = list(flat)
            for place, x in zip(places, tensors, strict=True):
                filled[place] = x
            result[:] = pytree.tree_flatten(fn(*pytree.tree_unflatten(filled, structure)))
            return [x for x in result[0] if isinstance(x, Tensor)]

        outputs = iter(torch.vmap(one)(*(flat[i] for i in places)))
        leaves, out_structure = result
        filled = [next(outputs) if isinstance(x, Tensor) else x for x in leaves]
        return pytree.tree_unflatten(filled, out_structure)

    return many


def one_by_one(fn: Callable[..., Any]) -> Callable[..., Any]:
    """As ``vmap``, in a loop: for operations that are slow with an axis of weights, such as
    convolutions."""

    def many(*args: Any) -> Any:
        num = len(leaves(args)[0])
        return stack([fn(*index(args, i)) for i in range(num)])

    return many


def is_finite(tree: Any) -> bool:
    """Whether every floating tensor is free of NaN and infinity (waits for the device)."""
    return all(bool(x.isfinite().all()) for x in leaves(tree) if x.is_floating_point())
