"""The processes that share a population, under ``torchrun``; one process without it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from discorl.runs.tree_file import from_bytes, to_bytes
from discorl.types import Params


@dataclass(frozen=True)
class Ranks:
    """This process among those that share a population."""

    rank: int = 0
    size: int = 1

    def sum(self, params: Params) -> Params:
        """Add up over all processes, in one message; every process gets the same bits."""
        if self.size == 1:
            return params
        flat = torch.cat([p.flatten() for p in params.values()])
        dist.all_reduce(flat)
        parts = flat.split([p.numel() for p in params.values()])
        return {k: x.reshape(p.shape) for (k, p), x in zip(params.items(), parts, strict=True)}

    def merge(self, part: dict[str, Any]) -> dict[str, Any]:
        """The entries of all processes together, in every process."""
        if self.size == 1:
            return part
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, part)
        return {k: v for of_rank in parts for k, v in of_rank.items()}

    def gather(self, part: dict[str, Any]) -> list[Any]:
        """Trees of all processes, in the first; as ``tree_file.load`` gives them."""
        if self.size == 1:
            return [part]
        sealed = torch.frombuffer(bytearray(to_bytes(part)), dtype=torch.uint8)
        parts: list[Tensor | None] = [None] * self.size
        dist.gather_object(sealed, parts if self.rank == 0 else None)
        return [from_bytes(bytes(x.numpy())) for x in parts if x is not None]

    def barrier(self) -> None:
        """Wait for the others."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def population_ranks(device: torch.device) -> Iterator[Ranks]:
    """Join the processes that torchrun started, if it did."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Ranks()
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
