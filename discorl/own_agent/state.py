"""A trainer's state as plain containers of tensors and numbers, which any format can hold."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import torch
from torch import Tensor

from discorl import tree
from discorl.agents.replay import Replay, zeros_like
from discorl.errors import DiscorlError
from discorl.types import Params, Rollout


def to_plain(x: Any) -> Any:
    """Dataclasses as dicts and named tuples as tuples; tensors are not copied."""
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return {f.name: to_plain(getattr(x, f.name)) for f in dataclasses.fields(x)}
    if isinstance(x, dict):
        return {key: to_plain(value) for key, value in x.items()}
    if isinstance(x, tuple | list):
        return tuple(to_plain(value) for value in x)
    return x


def replay_to_plain(replay: Replay) -> dict[str, Any]:
    """The stored trajectories, in slot order."""
    kept = replay.state_dict()
    storage, size = kept["storage"], kept["size"]
    if size < replay.capacity:
        # A copy, because a slice would be saved together with all the empty slots.
        storage = tree.map(lambda x: x[:, :size].clone(), storage)
    numbers = {"capacity": replay.capacity, "next": kept["next"], "newest": kept["num_newest"]}
    return numbers | {"storage": to_plain(storage)}


def replay_from_plain(plain: Any, capacity: int, device: torch.device) -> Replay:
    """The replay that ``replay_to_plain`` described."""
    replay = Replay(capacity)
    wanted = {"capacity", "next", "newest", "storage"}
    if not isinstance(plain, dict) or plain.keys() != wanted:
        raise DiscorlError(f"the saved replay must have the entries {', '.join(sorted(wanted))}")
    if plain["capacity"] != capacity:
        raise DiscorlError(
            f"the replay was saved with capacity {plain['capacity']}, but this one has {capacity}: "
            f"pass replay_capacity={plain['capacity']}"
        )
    if plain["storage"] is None:
        return replay
    try:
        kept = tree.map(lambda x: x.detach().to(device), _rollout(plain["storage"]))
        size = kept.actions.shape[1]
        fits = all(x.shape[1] == size for x in tree.leaves(kept))
    except (TypeError, AttributeError, IndexError, RuntimeError) as e:
        raise DiscorlError(f"the saved replay is broken: {e}") from None
    is_next = type(plain["next"]) is int and 0 <= plain["next"] < capacity
    is_next = is_next and type(plain["newest"]) is int and 0 < plain["newest"] <= size
    if not fits or not is_next or not 0 < size <= capacity:
        raise DiscorlError("the saved replay is broken: its parts have different sizes")

    def slots(x: Tensor) -> Tensor:
        room = zeros_like(x, (len(x), capacity, *x.shape[2:]))
        room[:, :size] = x
        return room

    numbers = {"next": plain["next"], "size": size, "num_newest": plain["newest"]}
    replay.load_state_dict({"storage": tree.map(slots, kept)} | numbers)
    return replay


def _rollout(saved: dict[str, Any]) -> Rollout:
    """A rollout from its fields, including those of version 0.1.0."""
    fields = dict(saved)
    if "agent_state" in fields:
        del fields["core_state"]
        fields["memory"] = fields.pop("agent_state")
    return Rollout(**fields)


def fingerprint(params: Params) -> str:
    """A checksum of a rule's parameters."""
    digest = hashlib.sha256()
    for name, p in sorted(params.items()):
        digest.update(name.encode())
        digest.update(p.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
