"""A trainer's state as plain containers of tensors and numbers, which any format can hold."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import torch
from torch import Tensor

from discorl import tree
from discorl.agents.replay import Replay
from discorl.errors import DiscorlError
from discorl.own_agent.collect import AgentRollout
from discorl.types import Params


def to_plain(x: Any) -> Any:
    """Dataclasses as dicts and named tuples as tuples; tensors are not copied."""
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return {f.name: to_plain(getattr(x, f.name)) for f in dataclasses.fields(x)}
    if isinstance(x, dict):
        return {key: to_plain(value) for key, value in x.items()}
    if isinstance(x, tuple | list):
        return tuple(to_plain(value) for value in x)
    return x


def from_plain(like: Any, plain: Any, path: str) -> Any:
    """A copy of ``plain`` in the types of ``like``; raises where it does not fit.

    Tensors come out on the device of ``like``.
    """
    if isinstance(like, Tensor):
        return _tensor(like, plain, path)
    if dataclasses.is_dataclass(like) and not isinstance(like, type):
        names = {f.name: getattr(like, f.name) for f in dataclasses.fields(like)}
        return dataclasses.replace(like, **from_plain(names, plain, path))
    if isinstance(like, dict):
        if not isinstance(plain, dict) or plain.keys() != like.keys():
            raise DiscorlError(f"{path} {_difference(like, plain)}")
        return {k: from_plain(x, plain[k], f"{path}.{k}") for k, x in like.items()}
    if isinstance(like, tuple):
        if not isinstance(plain, tuple | list) or len(plain) != len(like):
            raise DiscorlError(f"{path} must have {len(like)} entries; it was saved otherwise")
        made = [
            from_plain(x, y, f"{path}[{i}]")
            for i, (x, y) in enumerate(zip(like, plain, strict=True))
        ]
        return type(like)(*made) if hasattr(like, "_fields") else tuple(made)
    if type(plain) is not type(like):
        raise DiscorlError(f"{path} is a {type(plain).__name__}, not a {type(like).__name__}")
    return plain


def replay_to_plain(replay: Replay) -> dict[str, Any]:
    """The trajectories kept, in the order of their slots."""
    size = len(replay)
    storage = replay._storage
    if storage is not None and size < replay.capacity:
        # A copy, for a slice would be saved together with all the empty slots.
        storage = tree.map(lambda x: x[:, :size].clone(), storage)
    numbers = {"capacity": replay.capacity, "next": replay._next, "newest": replay._num_newest}
    return numbers | {"storage": to_plain(storage)}


def replay_from_plain(plain: Any, capacity: int, device: torch.device) -> Replay:
    """The replay that ``replay_to_plain`` told of."""
    replay = Replay(capacity)
    numbers = {"capacity": capacity, "next": 0, "newest": 0}
    if not isinstance(plain, dict) or plain.keys() != {*numbers, "storage"}:
        raise DiscorlError(f"replay {_difference(numbers | {'storage': None}, plain)}")
    if plain["capacity"] != capacity:
        raise DiscorlError(
            f"the replay was saved with capacity {plain['capacity']}, this one has {capacity}: "
            f"pass replay_capacity={plain['capacity']}"
        )
    if plain["storage"] is None:
        return replay
    try:
        kept = tree.map(lambda x: x.detach().to(device), AgentRollout(**plain["storage"]))
        size = kept.actions.shape[1]
        fits = all(x.shape[1] == size for x in tree.leaves(kept))
    except (TypeError, AttributeError, IndexError, RuntimeError) as e:
        raise DiscorlError(f"the saved replay is broken: {e}") from None
    is_next = type(plain["next"]) is int and 0 <= plain["next"] < capacity
    is_next = is_next and type(plain["newest"]) is int and 0 < plain["newest"] <= size
    if not fits or not is_next or not 0 < size <= capacity:
        raise DiscorlError("the saved replay is broken: its parts have different sizes")

    def slots(x: Tensor) -> Tensor:
        room = x.new_empty(len(x), capacity, *x.shape[2:])
        room[:, :size] = x
        return room

    replay._storage = tree.map(slots, kept)
    replay._next, replay._size, replay._num_newest = plain["next"], size, plain["newest"]
    return replay


def fingerprint(params: Params) -> str:
    """A checksum of a rule's parameters."""
    digest = hashlib.sha256()
    for name, p in sorted(params.items()):
        digest.update(name.encode())
        digest.update(p.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _tensor(like: Tensor, plain: Any, path: str) -> Tensor:
    if not isinstance(plain, Tensor):
        raise DiscorlError(f"{path} is a {type(plain).__name__}, not a tensor")
    if plain.shape != like.shape or plain.dtype != like.dtype:
        raise DiscorlError(
            f"{path} was saved as {plain.dtype} {list(plain.shape)}, but here it is {like.dtype} "
            f"{list(like.shape)}"
        )
    return plain.detach().to(like.device, copy=True)


def _difference(like: dict, plain: Any) -> str:
    if not isinstance(plain, dict):
        return f"is a {type(plain).__name__}, not a dict"
    lacks = sorted(map(str, like.keys() - plain.keys()))
    extra = sorted(map(str, plain.keys() - like.keys()))
    return "; ".join(
        f"{what} {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        for what, names in (("lacks", lacks), ("has an unknown entry", extra))
        if names
    )
