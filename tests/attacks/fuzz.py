"""Many files, one after the other, under watch: time, memory, what is said, what is run."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from tests.attacks import bombs, forked
from tests.attacks.attack import Case, dice
from tests.attacks.commands import listen, tells
from tests.attacks.targets import Target, make_cheap, make_original

MAX_SECONDS = 30
MAX_GROWTH = 2**30
HARD_LIMIT = 3 * 2**30
"""Address space beyond what a worker has at its start; a guard for the machine, not a verdict."""
PATIENCE = 60
"""Seconds beyond that for what is not interrupted, and for a worker to start."""
BATCH = 200


class TooLong(BaseException):
    """Raised by the alarm; not an ``Exception``, so that nobody catches it by mistake."""


Plant = Callable[[Path], None]
"""Puts a hostile file at a path."""


@dataclass(frozen=True)
class Fuzz:
    """Files of one kind, each a valid one with changes."""

    target: Target

    @property
    def name(self) -> str:
        return f"fuzz-{self.target.name}"

    @property
    def num_cases(self) -> int | None:
        return None

    def cases(self, seed: int, first: int, count: int, room: Path) -> Iterator[Case]:
        original = make_original(self.target, room)
        data = (original / self.target.file).read_bytes()

        def plant(number: int, canary: Path) -> tuple[str, Plant]:
            changed = self.target.mutate(dice(self.name, seed, number), data, canary)
            return f"{self.name} {number}", lambda path: write_file(path, changed)

        for start in range(first, first + count, BATCH):
            numbers = range(start, min(start + BATCH, first + count))
            yield from watched(self.target, original, plant, numbers, room)

    def file(self, seed: int, number: int, room: Path) -> bytes:
        """The file of a case, to look at it or to keep it."""
        data = (make_original(self.target, room) / self.target.file).read_bytes()
        return self.target.mutate(dice(self.name, seed, number), data, room / "canary")


@dataclass(frozen=True)
class Bombs:
    """Files that are small and grow, and what is no file: the same ones every time."""

    target: Target

    @property
    def name(self) -> str:
        return f"bomb-{self.target.name}"

    @property
    def num_cases(self) -> int | None:
        return len(self.target.readers) * len(self._all)

    @property
    def _all(self) -> list[tuple[str, Plant]]:
        own = [(make.__name__, _writing(make)) for make in self.target.bombs]
        return own + [(kind, bombs.special(kind)) for kind in bombs.SPECIALS]

    def cases(self, seed: int, first: int, count: int, room: Path) -> Iterator[Case]:
        original = make_original(self.target, room)

        def plant(number: int, canary: Path) -> tuple[str, Plant]:
            kind, put = self._all[number // len(self.target.readers)]
            return f"{self.name} {kind}", put

        last = min(first + count, self.num_cases or 0)
        yield from watched(self.target, original, plant, range(first, last), room)


def watched(
    target: Target,
    original: Path,
    plant: Callable[[int, Path], tuple[str, Plant]],
    numbers: range,
    room: Path,
) -> Iterator[Case]:
    """Have the files read in a process of their own, and a new one whenever it dies."""
    left = list(numbers)
    while left:
        reader, writer = os.pipe()

        def work(writer: int = writer, left: tuple[int, ...] = tuple(left)) -> None:
            _work(target, original, plant, left, room, writer)

        child = forked.start(work, room / "worker.said")
        os.close(writer)
        for case in _received(reader, child):
            left.remove(case.number)
            yield case
        os.close(reader)
        ended = child.wait(timeout=5)
        if left:
            number = left.pop(0)
            said = "the process hung" if ended.timed_out else f"the process died ({ended.code})"
            yield Case(number, "failed", f"{target.name} {number}: {said}: {ended.last_words}")


def _received(reader: int, child: forked.Child) -> Iterator[Case]:
    """What the worker reports, as long as it is not silent for too long."""
    pending = b""
    while select.select([reader], [], [], MAX_SECONDS + PATIENCE)[0]:
        data = os.read(reader, 65_536)
        if not data:
            return
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            yield Case(**json.loads(line))
    child.send(signal.SIGKILL, to_group=True)


def _work(
    target: Target,
    original: Path,
    plant: Callable[[int, Path], tuple[str, Plant]],
    numbers: tuple[int, ...],
    room: Path,
    writer: int,
) -> None:
    make_cheap()
    signal.signal(signal.SIGALRM, _alarm)
    _limit_memory()
    canary = room / "canary"
    for read in target.readers:
        read(original_copy(original, room / "warm"))  # what is built on first use
    for number in numbers:
        folder = original_copy(original, room / "attacked")
        what, put = plant(number, canary)
        path = folder / target.file
        path.unlink()
        put(path)
        read = target.readers[number % len(target.readers)]
        case = _judged(number, what, partial(read, folder), canary)
        os.write(writer, json.dumps(vars(case)).encode() + b"\n")


def original_copy(original: Path, to: Path) -> Path:
    """A fresh folder, whatever the last one has become."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(original, to)
    return to


def _judged(number: int, what: str, read: Callable[[], object], canary: Path) -> Case:
    """Read a file and say how that went."""
    before, start = _peak_memory(reset=True), time.monotonic()
    signal.alarm(MAX_SECONDS)
    try:
        said = listen(read)
    except TooLong:
        return Case(number, "failed", f"{what}: more than {MAX_SECONDS} s")
    except (Exception, KeyboardInterrupt, SystemExit) as e:
        where = traceback.extract_tb(e.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        return Case(number, "failed", f"{what}: {type(e).__name__} at {place}: {e!s:.300}")
    finally:
        signal.alarm(0)
    wrong = tells(canary) or said.complaint()
    growth, seconds = _peak_memory() - before, time.monotonic() - start
    if growth > MAX_GROWTH:
        wrong = f"took {growth / 2**30:.1f} GB ({said.error:.100})"
    if seconds > MAX_SECONDS:
        wrong = f"took {seconds:.0f} s"
    if wrong:
        return Case(number, "failed", f"{what}: {wrong}")
    return Case(number, "refused" if said.code else "accepted", f"{what}: {said.error:.200}")


def _alarm(number: int, frame: FrameType | None) -> None:
    raise TooLong


def _limit_memory() -> None:
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + HARD_LIMIT, now + HARD_LIMIT))


def _peak_memory(reset: bool = False) -> int:
    """The most memory that this process has had, since it was last reset if possible."""
    if reset:
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def _writing(make: Callable[[], bytes]) -> Plant:
    return lambda path: write_file(path, make())


def write_file(path: Path, data: bytes) -> None:
    path.write_bytes(data)
