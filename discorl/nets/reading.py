"""What a rule reads of an agent's output: rows, joined and put in order."""

from __future__ import annotations

import torch
from torch import Tensor

from discorl.ops.rows import in_blocks
from discorl.types import Reader, Reading


def reads_actions(reader: Reader) -> bool:
    """Whether the rule reads anything of each action."""
    return reader.z is not None or reader.q is not None


def read_taken(heads: dict[str, Tensor], reader: Reader) -> tuple[Tensor, ...]:
    """The reading of outputs that are already there. [N, ...] each"""
    _, read_z, read_q = reader
    of_z = in_blocks(lambda z: read_z(z, ()), heads["z"]) if read_z else ()
    of_q = in_blocks(lambda q: (read_q(q, ()),), heads["q"]) if read_q else ()
    return of_z + of_q


def joined(
    first: tuple[Tensor, ...], second: tuple[Tensor, ...], dim: int = 0
) -> tuple[Tensor, ...]:
    """Two readings of the same kind, one after the other."""
    return tuple(torch.cat(pair, dim) for pair in zip(first, second, strict=True))


def to_action_order(
    readings: tuple[Tensor, ...], taken: Tensor, num_actions: int
) -> tuple[Tensor, ...]:
    """From taken-first cyclic order [N, A, ...] to the actions' own. ``taken`` [N, 1]"""
    place = (torch.arange(num_actions, device=taken.device) - taken) % num_actions

    def reorder(x: Tensor) -> Tensor:
        return x.gather(1, place.reshape(*place.shape, *(1,) * (x.dim() - 2)).expand_as(x))

    return tuple(reorder(x) for x in readings)


def as_reading(
    of_states: tuple[Tensor, ...], of_actions: tuple[Tensor, ...], reader: Reader, num_steps: int
) -> Reading:
    """Rows [N, ...] as [T, B, ...]; the value of q comes after the embeddings of z."""
    y, pairs = (
        tuple(x.unflatten(0, (num_steps, -1)) for x in rows) for rows in (of_states, of_actions)
    )
    return Reading(y, pairs[:-1], pairs[-1]) if reader.q else Reading(y, pairs)
