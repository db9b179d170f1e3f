"""Stacks of frames stored once: consecutive stacks share all but one frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from discorl import tree
from discorl.errors import DiscorlError
from discorl.types import Observation

GOES_ON, FROM_ZEROS, FROM_REPEATS = range(3)


@tree.register
@dataclass(frozen=True)
class Frames:
    """The frames of stacked observations, and where a stack does not continue the previous one.

    There (at the start of an episode) older frames are zeros or repeats of the first one.
    """

    frames: Tensor  # [T + k - 1, B, C, ...]
    starts: Tensor  # [T, B], uint8


def unstack_observations(observations: Observation, num_stacked: int) -> Any:
    """``unstack`` for observations of one tensor or several.

    Of several, those whose first axis cannot hold that many frames are kept as they are.
    """
    if isinstance(observations, Tensor):
        return unstack(observations, num_stacked)
    parts = {k: _is_divisible(x, num_stacked) for k, x in observations.items()}
    if not any(parts.values()):
        raise DiscorlError(
            f"none of the observations {', '.join(parts)} is a stack of {num_stacked} frames: set "
            "frame_stack to 1 or to what the environment stacks"
        )
    return {k: unstack(x, num_stacked) if parts[k] else x for k, x in observations.items()}


def restack_observations(kept: Any, num_stacked: int) -> Observation:
    """What ``unstack_observations`` was given."""
    if isinstance(kept, Frames):
        return restack(kept, num_stacked)
    return {k: restack(x, num_stacked) if isinstance(x, Frames) else x for k, x in kept.items()}


def unstack(observations: Tensor, num_stacked: int) -> Frames:
    """Single frames of stacks [T, B, k * C, ...], whose oldest frame comes first."""
    if not _is_divisible(observations, num_stacked):
        raise DiscorlError(
            f"observations of shape {tuple(observations.shape[2:])} are not stacks of "
            f"{num_stacked} frames: set frame_stack to 1 or to what the environment stacks"
        )
    stacks = observations.unflatten(2, (num_stacked, -1))  # [T, B, k, C, ...]
    older, newest = stacks[:, :, :-1], stacks[:, :, -1]

    goes_on = (older[1:] == stacks[:-1, :, 1:]).flatten(2).all(-1)
    starts = torch.full(observations.shape[:2], GOES_ON, dtype=torch.uint8, device=older.device)
    # All frames of the first stack are kept, so it needs no mark; few others do.
    for t, b in (~goes_on).nonzero().tolist():
        starts[t + 1, b] = _kind_of_start(stacks[t + 1, b])
    frames = torch.cat([older[0].transpose(0, 1), newest])
    return Frames(frames, starts)


def _is_divisible(observations: Tensor, num_stacked: int) -> bool:
    return observations.dim() >= 3 and observations.shape[2] % num_stacked == 0


def _kind_of_start(stack: Tensor) -> int:
    """How a stack [k, C, ...] that does not continue another was filled."""
    older, newest = stack[:-1], stack[-1:]
    if not bool(older.any()):
        return FROM_ZEROS
    if bool((older == newest).all()):
        return FROM_REPEATS
    raise DiscorlError(
        f"observations are not stacks of the last {len(stack)} frames that begin with zeros or "
        "repeats: set frame_stack to 1 to keep them whole"
    )


def restack(kept: Frames, num_stacked: int) -> Tensor:
    """What ``unstack`` was given. [T, B, k * C, ...]"""
    num_steps, batch = kept.starts.shape
    device = kept.starts.device
    time = torch.arange(num_steps, device=device).unsqueeze(1)
    is_start = kept.starts != GOES_ON
    last_start = torch.where(is_start, time, -num_stacked).cummax(0).values  # [T, B]
    wanted = time.unsqueeze(2) + torch.arange(num_stacked, device=device)  # [T, 1, k]
    first = (last_start + num_stacked - 1).unsqueeze(2)  # the newest frame of the last start
    columns = torch.arange(batch, device=device).unsqueeze(1)
    # Whole frames by one index are copied many times as fast as by one index for each axis.
    rows = torch.maximum(wanted, first) * batch + columns  # [T, B, k]
    stacks = kept.frames.flatten(0, 1).index_select(0, rows.flatten())
    from_zeros = kept.starts.gather(0, last_start.clamp(min=0)) == FROM_ZEROS
    empty = (wanted < first) & from_zeros.unsqueeze(2)
    stacks.index_fill_(0, empty.flatten().nonzero().squeeze(1), 0)  # few, if any
    return stacks.unflatten(0, rows.shape).flatten(2, 3)
