"""Reading files that anyone may have made: only regular ones, and never more than a stated limit.

Files in a run's folder and rule files are passed around, so a name may lead to a device that never
ends, to a pipe that never answers, or to a gigabyte where a few kilobytes belong.
"""

from __future__ import annotations

import io
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from discorl.errors import DiscorlError

MAX_JSON_DEPTH = 100


class Unreadable(DiscorlError):  # noqa: N818 - reads as a sentence where it is caught
    """The file is of a kind, a size or a depth that is never read."""


@contextmanager
def open_regular(path: Path, max_bytes: int) -> Iterator[io.BufferedReader]:
    """Open a regular file, or what a link to one leads to, of at most ``max_bytes``.

    Raises ``Unreadable`` for any other, and ``OSError`` as ``open`` does.
    """
    # Non-blocking, because opening a pipe waits for a writer. What was opened is then looked at by
    # its handle: between a look at the name and the opening, the name could change its meaning.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags | getattr(os, "O_NOCTTY", 0))
    except ValueError as e:  # a name with a null character
        raise Unreadable(f"no file can be called {str(path)!r}: {e}") from None
    try:
        _check(path, os.fstat(handle), max_bytes)
    except BaseException:
        os.close(handle)
        raise
    with os.fdopen(handle, "rb") as file:
        yield file


def _check(path: Path, status: os.stat_result, max_bytes: int) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise Unreadable(f"{path} is a folder, not a file")
    if not stat.S_ISREG(status.st_mode):
        raise Unreadable(f"{path} is a device or a pipe, not a file")
    if status.st_size > max_bytes:
        raise _too_large(path, status.st_size, max_bytes)


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """All of a file of at most ``max_bytes``."""
    with open_regular(path, max_bytes) as file:
        data = file.read(max_bytes + 1)  # it may grow, and the system's own files hide their size
    if len(data) > max_bytes:
        raise _too_large(path, len(data), max_bytes)
    return data


def parse_json(data: bytes, max_depth: int = MAX_JSON_DEPTH) -> Any:
    """JSON in UTF-8, not too deep to walk through; raises ``ValueError`` if it is anything else."""
    try:
        content = json.loads(data.decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level: list[Any] = [[content]]
    for _ in range(max_depth + 1):
        inside = (x.values() if isinstance(x, dict) else x for x in level)
        level = [x for part in inside for x in part if isinstance(x, dict | list)]
        if not level:
            return content
    raise ValueError(f"it is nested more than {max_depth} levels deep")


def _too_large(path: Path, size: int, max_bytes: int) -> Unreadable:
    return Unreadable(f"{path} is {size} bytes or more, too large: at most {max_bytes} are read")
