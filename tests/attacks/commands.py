"""Anything as a command of ``discorl``: its errors become what a user would see."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from discorl import cli

MAX_LINE = 20_000
ALLOWED_CONTROLS = "\n\t"


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    def complaint(self) -> str | None:
        """What is wrong with how it ended, if anything: it is done, or says in one line why not."""
        if odd := [c for c in self.out + self.err if _is_control(c)]:
            return f"it printed control characters {odd[:3]!r}: {(self.err or self.out)!r:.300}"
        lines = [line for line in self.err.splitlines() if not line.startswith("warning: ")]
        if self.code == 2 and (len(lines) != 1 or not lines[0].startswith("error: ")):
            return f"its error is not one line: {self.err!r:.300}"
        if any(len(line) > MAX_LINE for line in lines):
            return f"a line of {max(map(len, lines))} characters: {self.err!r:.100}"
        return None if self.code in (0, 2) else f"exit {self.code}: {self.err!r:.300}"

    @property
    def error(self) -> str:
        """The line that says why not, if there is one."""
        return next((x for x in self.err.splitlines() if x.startswith("error: ")), "")


def as_command(action: Callable[[], object]) -> int:
    """Do something as a command in this process, for good; returns the exit code.

    What the command line does around its commands is real; only parsing arguments, which takes
    longer than most of what is attacked, is left out.
    """

    def run(command: str, args: list[str]) -> int:
        action()
        return 0

    cli._run = run
    return cli.main(["attacked"])


def listen(action: Callable[[], object]) -> Said:
    """Do something as a command, and listen to what it says. Exceptions that it lets through
    are raised."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = as_command(action)
    return Said(code, _text(out), _text(err))


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode()  # pyright: ignore[reportAttributeAccessIssue]


def _is_control(c: str) -> bool:
    """Characters that a terminal obeys."""
    return c not in ALLOWED_CONTROLS and (ord(c) < 32 or 127 <= ord(c) < 160)


def tells(canary: Path) -> str | None:
    """Whether a pickle was loaded; it can tell again afterwards."""
    if not canary.exists():
        return None
    canary.rmdir()
    return "it ran code"
