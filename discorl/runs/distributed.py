"""Several processes for one run, as torchrun starts them; every function also works with just one.

Each process has its share of the environments and of the batch. They exchange only means.
Anything else they send each other is a tree in checkpoint form, so nothing is unpickled.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from discorl.atomic import write_atomically
from discorl.errors import DiscorlError
from discorl.runs.checkpoint import from_bytes, to_bytes
from discorl.runs.device import choose_device

TIMEOUT_MINUTES = 10.0
MAX_TIMEOUT_MINUTES = 100_000
JOB_FILE = ".torchrun"
"""Says which torchrun has begun a run, until the run ends."""


class LostContact(DiscorlError):  # noqa: N818 - reads as a sentence where it is caught
    """Another process is gone or does not answer. What this one has is worth keeping."""


def check_timeout(minutes: float) -> None:
    """Raise unless processes can wait for that long."""
    if not 0 < minutes <= MAX_TIMEOUT_MINUTES:
        raise DiscorlError(
            f"timeout_minutes must be above 0 and at most {MAX_TIMEOUT_MINUTES}, not {minutes}"
        )


@dataclass(frozen=True)
class Ranks:
    """Which of the processes this is."""

    rank: int
    size: int
    device: torch.device
    restarts: int = 0
    """How many times torchrun has restarted the processes."""

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files and shows the progress."""
        return self.rank == 0

    def shard(self, count: int, what: str) -> int:
        """This process's share of ``count``; an error if it cannot be split evenly."""
        if count % self.size:
            raise DiscorlError(
                f"{what} is {count}, which {self.size} processes cannot share evenly: "
                f"make it a multiple of {self.size}"
            )
        return count // self.size

    def share(self, count: int) -> int:
        """This process's share of ``count``, rounded up where it cannot be split evenly."""
        return -(-count // self.size)

    def deal(self, count: int) -> list[list[int]]:
        """The numbers below ``count`` that go to each process when they are dealt out in turn."""
        return [list(range(rank, count, self.size)) for rank in range(self.size)]

    def seed(self, seed: int) -> int:
        """A seed for this process alone; the first keeps the seed it would have by itself."""
        return (seed + self.rank * 0x9E3779B97F4A7C15) % 2**63 if self.rank else seed


def start(device: str = "auto", timeout_minutes: float = TIMEOUT_MINUTES) -> Ranks:
    """Join the other processes if torchrun has started some; else be the only one."""
    timeout = timedelta(minutes=timeout_minutes)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if "RANK" not in os.environ or size == 1:
        return Ranks(0, 1, choose_device(device))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if device in ("auto", "cuda") and torch.cuda.is_available():
        device = f"cuda:{local_rank % torch.cuda.device_count()}"
    elif device == "auto":
        device = "cpu"  # Apple's GPU has no collectives
    chosen = choose_device(device)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
    with _together(), _no_longer_than(2 * timeout):  # each of the two may take that long
        store, rank, size = next(dist.rendezvous("env://", timeout=timeout))
        # torchrun's store outlives a restart: without a name of its own, a new process could find
        # the address that a dead one has left there.
        store = dist.PrefixStore(f"discorl-{restarts}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    return Ranks(rank, size, chosen, restarts)


@contextmanager
def _no_longer_than(limit: timedelta) -> Iterator[None]:
    """End the process if joining takes longer: torch waits for ever for one that was stopped just
    as it joined, and does not come back to be interrupted. Nothing has been begun yet."""

    def end() -> None:
        said = f"another process does not answer: gave up after {limit.total_seconds():.0f} seconds"
        print(f"error: {said} of joining it", file=sys.stderr, flush=True)
        os._exit(2)

    timer = threading.Timer(limit.total_seconds(), end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def was_begun(out: Path | None, ranks: Ranks) -> bool:
    """Whether the processes that torchrun restarted had begun the run in ``out`` themselves."""
    if out is None:
        raise DiscorlError(
            "torchrun has restarted this run, which can only continue if it knows its folder: "
            "set --out when you use --max-restarts"
        )
    return broadcast(_is_ours(out) if ranks.is_first else None)


def mark_as_begun(folder: Path, ranks: Ranks) -> None:
    """Leave a note for the processes that torchrun may start in place of these."""
    if ranks.size > 1:
        write_atomically(folder / JOB_FILE, _job().encode())


def mark_as_ended(folder: Path, ranks: Ranks) -> None:
    """Remove the note."""
    if ranks.is_first:
        (folder / JOB_FILE).unlink(missing_ok=True)


def _is_ours(folder: Path) -> bool:
    try:
        return (folder / JOB_FILE).read_bytes() == _job().encode()
    except OSError:
        return False


def _job() -> str:
    """A name for this torchrun, the same after restarts: its own, or the process of the first."""
    run_id = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return f"{socket.gethostname()} {os.getppid()}" if run_id == "none" else run_id


@contextmanager
def joined(device: str = "auto", timeout_minutes: float = TIMEOUT_MINUTES) -> Iterator[Ranks]:
    """Be one of the processes of a run while this is open."""
    ranks = start(device, timeout_minutes)
    try:
        yield ranks
    finally:
        stop()


def stop() -> None:
    """Leave the other processes."""
    if dist.is_initialized():
        dist.destroy_process_group()


def mean(x: Tensor) -> Tensor:
    """The mean of ``x`` over all processes; gradients pass through it."""
    if not dist.is_initialized():
        return x
    return _Mean.apply(x)  # pyright: ignore[reportReturnType]


def total(count: int) -> int:
    """The sum of ``count`` over all processes."""
    if not dist.is_initialized():
        return count
    x = torch.tensor(count)
    with _together():
        dist.all_reduce(x)
    return int(x)


def any_of(*flags: bool) -> tuple[bool, ...]:
    """For each flag, whether it is set in any of the processes."""
    if not dist.is_initialized():
        return flags
    x = torch.tensor(flags, dtype=torch.uint8)
    with _together():
        dist.all_reduce(x, dist.ReduceOp.MAX)
    return tuple(bool(flag) for flag in x.tolist())


def broadcast(content: Any) -> Any:
    """The first process's tree, in plain form (see ``checkpoint.load``), in every process."""
    if not dist.is_initialized():
        return from_bytes(to_bytes(content))
    first = dist.get_rank() == 0
    data = _tensor(to_bytes(content)) if first else torch.empty(0, dtype=torch.uint8)
    size = torch.tensor(len(data))
    with _together():
        dist.broadcast(size, 0)
        if not first:
            data = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(data, 0)
    return from_bytes(_bytes(data))


def gather(content: Any) -> list[Any] | None:
    """The trees of all processes in the first one, in plain form; None in the others."""
    if not dist.is_initialized():
        return [content]
    if dist.get_rank() == 0:
        return [content, *(_receive(rank) for rank in range(1, dist.get_world_size()))]
    _send(content, 0)
    return None


def merge(part: dict[str, Any]) -> dict[str, Any]:
    """The entries of all processes together, in every process."""
    parts = gather(part)
    return broadcast({k: v for of_one in parts for k, v in of_one.items()} if parts else None)


def scatter(contents: Sequence[Any] | None) -> Any:
    """The other way round: the first process has a tree for each; every process gets its own."""
    if not dist.is_initialized():
        assert contents is not None
        return contents[0]
    if dist.get_rank() != 0:
        return _receive(0)
    assert contents is not None
    for rank in range(1, dist.get_world_size()):
        _send(contents[rank], rank)
    return contents[0]


class _Mean(torch.autograd.Function):
    """A mean over processes. Its adjoint is also a mean."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        total = x.detach().clone(memory_format=torch.contiguous_format)
        with _together():
            dist.all_reduce(total)
        return total / dist.get_world_size()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        del ctx
        return mean(grads[0])


def _send(content: Any, rank: int) -> None:
    data = _tensor(to_bytes(content))
    with _together():
        dist.send(torch.tensor(len(data)), rank)
        dist.send(data, rank)


def _receive(rank: int) -> Any:
    size = torch.tensor(0)
    with _together():
        dist.recv(size, rank)
        data = torch.empty(int(size), dtype=torch.uint8)
        dist.recv(data, rank)
    return from_bytes(_bytes(data))


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _bytes(data: Tensor) -> bytes:
    return data.numpy().tobytes()


@contextmanager
def _together() -> Iterator[None]:
    """What torch says when a process is gone, in one line."""
    try:
        yield
    except RuntimeError as e:
        reason = str(e).splitlines()[0][:120]
        what = f"lost contact with another process of this run ({reason})"
        if "timed out" in str(e).lower():
            what = (
                f"another process of this run has not answered in time ({reason}): it hangs or was "
                "stopped, or --timeout-minutes must be raised"
            )
        raise LostContact(f"{what}; continue from the last checkpoint with --resume") from None
