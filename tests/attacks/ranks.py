"""Two processes for one run, of which one is killed or stopped; the run goes on to the same end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

from discorl.cli import main
from discorl.training.config import TrainConfig
from tests.attacks import forked
from tests.attacks.attack import Case, dice
from tests.attacks.programs import TINY
from tests.attacks.whole import differences

STEPS = 40
SIZE = 2
SILENCE_MINUTES = 0.05
KINDS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)


@dataclass(frozen=True)
class DyingRanks:
    """A process of the run dies or stops at a random moment; the other one says so and ends.

    The processes are started as torchrun starts them, but without the seconds that it takes.
    """

    name: str = "ranks"
    num_cases: int | None = None

    def cases(self, seed: int, first: int, count: int, room: Path) -> Iterator[Case]:
        whole, seconds = room / "whole", room / "seconds"
        if not seconds.exists():
            start = time.monotonic()
            ended = [child.wait() for child in _start(whole, room)]
            if any(e.code for e in ended):
                raise RuntimeError(f"two processes do not even run: {ended[0].last_words}")
            seconds.write_text(str(time.monotonic() - start))
        longest = float(seconds.read_text())
        for number in range(first, first + count):
            rng = dice(self.name, seed, number)
            victim, kind, delay = rng.randrange(SIZE), rng.choice(KINDS), rng.uniform(0, longest)
            what = f"{self.name}: {kind.name} to process {victim} after {delay:.2f} s"
            said = _case(victim, kind, delay, whole, room)
            yield Case(
                number, "failed" if said else "survived", f"{what}: {said}" if said else what
            )


def _case(victim: int, kind: signal.Signals, delay: float, whole: Path, room: Path) -> str | None:
    """What went wrong with what should go wrong, if anything."""
    folder = room / "attacked"
    shutil.rmtree(folder, ignore_errors=True)
    children = _start(folder, room)
    time.sleep(delay)
    children[victim].send(kind)
    other = children[1 - victim].wait()
    if kind == signal.SIGSTOP:
        children[victim].send(signal.SIGKILL)
    died = children[victim].wait()
    is_civil = other.code in (0, 2, 130) and "Traceback" not in other.err
    if other.timed_out or not is_civil:
        return f"the other process ended badly: {other.last_words}"
    if other.code == 2 and other.err.count("error:") != 1:
        return f"the other process said {other.err[-500:]!r}"
    if died.code == 0 and other.code == 0:
        return _compared(whole, folder)
    ended = [child.wait() for child in _start(folder, room)]
    if any(e.code for e in ended):
        return f"they did not resume: {ended[0].last_words}; {ended[1].last_words}"
    return _compared(whole, folder)


def _compared(whole: Path, folder: Path) -> str | None:
    return "; ".join(differences(whole, folder, is_exact=True)) or None


def _start(folder: Path, room: Path) -> list[forked.Child]:
    """Two processes that begin a run, or resume it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [
        forked.start(partial(_rank, rank, port, folder), room / f"said-{rank}")
        for rank in range(SIZE)
    ]


def _rank(rank: int, port: int, folder: Path) -> int:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": SIZE, "MASTER_PORT": port}
    os.environ |= {k: str(v) for k, v in place.items()} | {"MASTER_ADDR": "127.0.0.1"}
    if (folder / "config.json").exists():
        return main(["train", "--resume", str(folder)])
    args = ["--steps", str(STEPS), "--out", str(folder)]
    if "timeout_minutes" in {f.name for f in fields(TrainConfig)}:
        args += ["--timeout-minutes", str(SILENCE_MINUTES)]
    return main(["train", "catch:4x3", *TINY, *args])
