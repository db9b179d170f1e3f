"""Commands in processes of their own, forked from this one, which has imported everything.

The process that forks must not have computed anything with torch: threads do not survive a fork.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import util
from pathlib import Path

Action = Callable[[], "int | None"]
"""What a process does; returns its exit code, or nothing for 0."""
TIMEOUT = 120.0
_exit = os._exit  # whatever an action puts in its place: a child must never return
MODULES = (
    *("discorl.cli", "discorl.training.train", "discorl.training.evaluate"),
    *("discorl.discovery.discover", "discorl.own_agent", "discorl.comparison.compare"),
    *("discorl.comparison.report", "discorl.comparison.table", "matplotlib.figure"),
    *("matplotlib.backends.backend_agg", "torch.fx.experimental.symbolic_shapes"),
)
"""What commands import, some of it late."""


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    """Its exit code, or minus the signal that killed it."""
    out: str
    err: str
    timed_out: bool = False

    @property
    def last_words(self) -> str:
        """For a report: the end of what it said."""
        said = " | ".join((self.err.strip() or self.out.strip()).splitlines()[-3:])
        return f"{'timed out, ' * self.timed_out}exit {self.code}: {said[-500:]}"


class Child:
    """A running process and the group that it leads."""

    def __init__(self, pid: int, spoken: Path) -> None:
        self.pid = pid
        self._spoken = spoken
        self._status: int | None = None

    def is_running(self) -> bool:
        """Whether it has not ended."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status is None

    def send(self, number: int, *, to_group: bool = False) -> None:
        """A signal, as ``kill`` sends it, or to the whole group, as a terminal does."""
        while to_group and self.is_running() and os.getpgid(self.pid) != self.pid:
            time.sleep(0.001)  # it has yet to make its group
        if self.is_running():
            (os.killpg if to_group else os.kill)(self.pid, number)

    def wait(self, timeout: float = TIMEOUT) -> Ended:
        """Wait for the end, which is near after ``timeout`` seconds; its group ends with it."""
        deadline, timed_out = time.monotonic() + timeout, False
        while self.is_running():
            if not timed_out and time.monotonic() > deadline:
                timed_out = True
                os.killpg(self.pid, signal.SIGKILL)
            time.sleep(0.003)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # workers that are left
        assert self._status is not None
        code = os.waitstatus_to_exitcode(self._status)
        return Ended(code, _read(self._spoken / "out"), _read(self._spoken / "err"), timed_out)


def import_everything() -> None:
    """Once, so that no child has to."""
    for name in MODULES:
        importlib.import_module(name)


def start(action: Action, spoken: Path) -> Child:
    """Fork a process that leads a group of its own; what it says goes to files in ``spoken``."""
    spoken.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until it can be caught
    if pid := os.fork():
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return Child(pid, spoken)
    code = 1
    try:
        atexit._clear()  # what the parent has to clean up is not ours
        atexit.register(util._exit_function)  # pyright: ignore[reportAttributeAccessIssue]
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for handle, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(spoken / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), handle)
        code = _exit_code(action)
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # an action may have closed it
                stream.flush()
        _exit(code)


def run(action: Action, spoken: Path, timeout: float = TIMEOUT) -> Ended:
    """Fork, and wait for the end."""
    return start(action, spoken).wait(timeout)


def _exit_code(action: Action) -> int:
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    except KeyboardInterrupt:  # before it had begun
        return 130
    try:
        return action() or 0
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
