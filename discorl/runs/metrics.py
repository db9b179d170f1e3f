"""metrics.jsonl, the record of a run: written and read row by row, never held as a whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from discorl.atomic import atomic_file
from discorl.bounded import open_regular
from discorl.errors import DiscorlError

Row = dict[str, Any]
Gap = tuple[int, int]
"""The first and the last step that should have a row and have none."""

TIMING_FIELDS = ("seconds", "steps_per_second", "env_steps_per_second")
"""What differs between two otherwise equal runs."""
GAP = "gap"
"""The field of a row before which others were lost."""
MAX_FILE_BYTES = 64 * 2**30
MAX_LINE_BYTES = 2**20
MAX_NAMED = 3
"""Gaps that a message names."""


class Log(Protocol):
    """Takes the rows of a run."""

    def write(self, row: Row) -> None:
        """Add a row; its ``step`` is larger than the one before."""
        ...

    def close(self) -> None:
        """No more rows."""
        ...


class MetricsFile:
    """metrics.jsonl: a JSON object on each line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            # Unbuffered: a failed write is noticed in ``write``, not again when closing.
            self._file = path.open("ab", buffering=0)
        except OSError as e:
            raise DiscorlError(f"cannot write {path}: {e.strerror}") from None

    def write(self, row: Row) -> None:
        data = (json.dumps(row) + "\n").encode()
        try:
            if self._file.write(data) != len(data):
                raise OSError(0, "the disk is full")
        except OSError as e:
            raise self._failed(e) from None

    def sync(self) -> None:
        """Make sure that the rows survive a power cut."""
        try:
            os.fsync(self._file.fileno())
        except OSError as e:
            raise self._failed(e) from None

    def close(self) -> None:
        with suppress(DiscorlError):  # the end of a run has better things to say
            self.sync()
        self._file.close()

    def _failed(self, e: OSError) -> DiscorlError:
        return DiscorlError(
            f"cannot write {self._path}: {e.strerror}; free some space, then use --resume"
        )


# --- reading -------------------------------------------------------------------------------------


class Rows:
    """The rows of a metrics file, read again by every loop over them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[Row]:
        return (row for _, row in _lines(self._path))


def read_rows(path: Path) -> list[Row]:
    """All rows of a metrics file at once; ``Rows`` is for those who can do without."""
    return list(Rows(path))


def last_row(path: Path) -> Row | None:
    """The last whole row of a metrics file, without reading the others; None if there is none."""
    if not path.exists():
        return None
    with open_regular(path, MAX_FILE_BYTES) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_LINE_BYTES))
        *whole, _ = file.read(MAX_LINE_BYTES).split(b"\n")
    return _parse(whole[-1] + b"\n", f"{path} is damaged at its end") if whole else None


def _lines(path: Path) -> Iterator[tuple[bytes, Row]]:
    """Each line and what it says; a last line that was cut short is left out."""
    try:
        if not path.exists():
            return
        with open_regular(path, MAX_FILE_BYTES) as file:
            for number in count(1):
                line = file.readline(MAX_LINE_BYTES)
                damaged = f"{path} is damaged at line {number}"
                if line.endswith(b"\n"):
                    yield line, _parse(line, damaged)
                elif len(line) == MAX_LINE_BYTES:
                    raise DiscorlError(f"{damaged}: it is longer than {MAX_LINE_BYTES:,} bytes")
                else:
                    return
    except OSError as e:
        raise DiscorlError(f"cannot read {path}: {e.strerror}") from None


def _parse(line: bytes, damaged: str) -> Row:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise DiscorlError(f"{damaged}: it is not JSON: {line[:40]!r}") from None
    if not isinstance(row, dict):
        raise DiscorlError(f"{damaged}: it is not an object")
    if type(step := row.get("step")) is not int or not 0 <= step < 2**63:
        raise DiscorlError(f"{damaged}: it has no step")
    for name, value in row.items():
        if not (_is_gap(value) if name == GAP else _is_number(value)):
            raise DiscorlError(f"{damaged}: its {name:.40} is not a number")
    return row


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def _is_gap(value: Any) -> bool:
    """Whether it is a first and a last step."""
    return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))


# --- which rows there should be ------------------------------------------------------------------


def is_due(step: int, intervals: Sequence[int]) -> bool:
    """Whether one of the intervals ends at ``step``."""
    return any(step % n == 0 for n in intervals)


@dataclass(frozen=True)
class Due:
    """The steps that should have a row."""

    every: Sequence[int]
    """Intervals, side by side; none if nothing is known about them."""

    @staticmethod
    def of(config: Mapping[str, Any]) -> Due:
        """What a config.json says about it."""
        every = (config.get(name) for name in ("log_every", "eval_every"))
        return Due([n for n in every if type(n) is int and n > 0])

    def missing(self, before: int, after: int) -> Gap | None:
        """What lies strictly between the steps of two neighbouring rows and should have a row."""
        first = min((before - before % n + n for n in self.every), default=after)
        if first >= after:
            return None
        return first, max(after - 1 - (after - 1) % n for n in self.every)

    def gaps(self, steps: Iterable[int], until: int = 0) -> list[Gap]:
        """All that is missing between ``steps`` and then up to ``until``."""
        found, before = [], 0
        for step in steps:
            found.append(self.missing(before, step))
            before = step
        found.append(self.missing(before, until + 1))
        return [gap for gap in found if gap]


def name_steps(gaps: Sequence[Gap]) -> str:
    """The missing steps in words."""
    named = [f"steps {a} to {b}" if a < b else f"step {a}" for a, b in gaps[:MAX_NAMED]]
    more = [f"{len(gaps) - MAX_NAMED} more gaps"] if len(gaps) > MAX_NAMED else []
    *most, last = [*named, *more]
    return f"{', '.join(most)} and {last}" if most else last


# --- going back ----------------------------------------------------------------------------------


@dataclass
class Rewound:
    """What a metrics file holds after it was cut back."""

    last_step: int = 0
    """Of its last row; 0 if it has none."""
    open_gap: Gap | None = None
    """What is missing after that, for the next row to say."""
    new_gaps: list[Gap] = field(default_factory=list)
    """All that is missing without a row that says so."""


def rewind(path: Path, step: int, due: Due, last: int) -> Rewound:
    """Cut a metrics file back to what an uninterrupted run to ``last`` has logged by ``step``.

    Where rows are missing, the row after them says so from now on.
    """
    left = Rewound()
    try:
        with atomic_file(path) as file:
            for line, row in _lines(path):
                n = row["step"]
                if n > step or not (n == last or is_due(n, due.every)):
                    continue
                if GAP not in row and (gap := due.missing(left.last_step, n)):
                    left.new_gaps.append(gap)
                    line = (json.dumps(row | {GAP: gap}) + "\n").encode()
                file.write(line)
                left.last_step = n
    except OSError as e:
        raise DiscorlError(f"cannot write {path}: {e.strerror}; free some space") from None
    left.open_gap = due.missing(left.last_step, step + 1)
    left.new_gaps += [left.open_gap] if left.open_gap else []
    return left
