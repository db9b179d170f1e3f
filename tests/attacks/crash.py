"""Killing one's own process at the n-th change to the files below a folder.

Everything that Python offers for it is replaced in this process, so nothing in the package knows.
Files that are opened for writing count each write that reaches the system, which can also be cut
in the middle.
"""

from __future__ import annotations

import builtins
import io
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

When = Literal["before", "half", "after"]
PATH_CALLS = (
    *("replace", "rename", "link", "symlink", "unlink", "remove", "mkdir", "rmdir"),
    *("chmod", "truncate", "utime"),
)
HANDLE_CALLS = ("fsync", "fdatasync", "ftruncate", "fchmod", "write")
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True)
class Point:
    """A moment in the life of a process."""

    call: int
    when: When


class Injector:
    """Counts calls, and kills the process at one of them."""

    def __init__(self, folder: Path, point: Point | None = None) -> None:
        self.calls: list[tuple[str, str]] = []
        """Name and path of each call so far."""
        self._folder = os.path.realpath(folder)
        self._point = point
        self._pid = os.getpid()

    def install(self) -> None:
        """From now on, for as long as the process lives."""
        for name in PATH_CALLS:
            setattr(os, name, self._around_path(name, getattr(os, name)))
        for name in HANDLE_CALLS:
            setattr(os, name, self._around_handle(name, getattr(os, name)))
        os.open = self._around_os_open(os.open)
        io.open = builtins.open = self._around_open(io.open)

    def strike(self, name: str, path: str, act: Callable[[], Any]) -> Any:
        """Make a call, unless its time has come."""
        if os.getpid() != self._pid or not self._is_inside(path):
            return act()
        number = len(self.calls)
        self.calls.append((name, os.path.relpath(path, self._folder)))
        self._die_at(number, "before")
        try:
            return act()
        finally:  # also where the call failed, as mkdir does if the folder is there
            self._die_at(number, "after")

    def write(self, path: str, data: Any, act: Callable[[Any], int]) -> int:
        """Write, perhaps only half of it."""
        if self._point == Point(len(self.calls), "half") and self._is_inside(path):
            act(memoryview(data).cast("B")[: memoryview(data).nbytes // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return self.strike("write", path, lambda: act(data))

    def _die_at(self, number: int, when: When) -> None:
        if self._point == Point(number, when):
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_inside(self, path: str) -> bool:
        return path == self._folder or path.startswith(f"{self._folder}{os.sep}")

    def _around_path(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            where = args[-1] if name in ("replace", "rename", "link", "symlink") else args[0]
            path = _absolute(where, kwargs.get("dir_fd"))
            return self.strike(name, path, lambda: call(*args, **kwargs))

        return counted

    def _around_handle(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(handle: Any, *args: Any) -> Any:
            path = _path_of(handle if isinstance(handle, int) else handle.fileno())
            if name == "write":
                return self.write(path, args[0], lambda data: call(handle, data))
            return self.strike(name, path, lambda: call(handle, *args))

        return counted

    def _around_os_open(self, call: Callable[..., int]) -> Callable[..., int]:
        def counted(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            if not flags & _CHANGES:
                return call(path, flags, *args, **kwargs)
            where = _absolute(path, kwargs.get("dir_fd"))
            return self.strike("open", where, lambda: call(path, flags, *args, **kwargs))

        return counted

    def _around_open(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(
            file: Any,
            mode: str = "r",
            buffering: int = -1,
            encoding: str | None = None,
            errors: str | None = None,
            newline: str | None = None,
            closefd: bool = True,
            opener: Any = None,
        ) -> Any:
            path = _path_of(file) if isinstance(file, int) else _absolute(file, None)
            if not set(mode) & set("wax+") or not self._is_inside(path):
                return call(file, mode, buffering, encoding, errors, newline, closefd, opener)
            raw_mode = mode.replace("b", "").replace("t", "")

            def make() -> _CountedFile:
                return _CountedFile(file, raw_mode, closefd, opener)

            raw = make() if isinstance(file, int) else self.strike("open", path, make)
            raw.injector, raw.path = self, path
            if buffering == 0:
                return raw
            binary = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return binary if "b" in mode else io.TextIOWrapper(binary, encoding, errors, newline)

        return counted


class _CountedFile(io.FileIO):
    """A file without a buffer, so that each write is a call of the system."""

    injector: Injector
    path: str

    def write(self, data: Any) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.injector.write(self.path, data, super().write)

    def truncate(self, size: int | None = None) -> int:
        cut = super().truncate
        return self.injector.strike("truncate", self.path, lambda: cut(size))


def _absolute(path: Any, dir_fd: int | None) -> str:
    """A path without symbolic links above its last part."""
    folder, name = os.path.split(os.path.abspath(os.fsdecode(os.fspath(path))))
    if dir_fd is not None:
        folder, name = _path_of(dir_fd), os.fsdecode(path)
    return os.path.join(os.path.realpath(folder), name)


def _path_of(handle: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{handle}")
    except OSError:
        return ""
