"""Environments in processes of their own: silence, death and failures name the environment."""

from __future__ import annotations

import os
import select
import signal
import threading
import traceback
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from operator import itemgetter
from types import FrameType
from typing import Any

from gymnasium.vector import AsyncVectorEnv, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState, _async_worker

from discorl.errors import DiscorlError, EnvFailure

TIMEOUT_MINUTES = 10.0
SLICES = 20
"""In how many parts a worker is waited for. If all processes are suspended, and continue an hour
later, that costs one part of the time and not all of it."""
NOTICE_SECONDS = 0.2
"""How soon Ctrl-C is noticed while workers are starting."""


class ReportingAsyncVectorEnv(AsyncVectorEnv):
    """Raises the failure of the first worker that has one, without logging tracebacks of all.

    Workers leave signals to this process, and one that does not answer in time is a failure.
    """

    timeout_minutes = TIMEOUT_MINUTES
    processes: Any = ()  # until there are some
    is_starting = True
    was_interrupted = False
    """Whether Ctrl-C came while it was starting."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        try:
            with self._noting_ctrl_c():
                super().__init__(*args, worker=_work, **kwargs)
            self.is_starting = False
            if self.was_interrupted:
                raise KeyboardInterrupt
        except BaseException:
            _kill(self.processes)
            for pipe in getattr(self, "parent_pipes", []):
                pipe.close()
            self.closed = True  # or it would try to, once more, when it is deleted
            raise
        # When Python ends, it sends workers a SIGTERM, which they do not listen to, and waits.
        Finalize(self, _kill, (self.processes,), exitpriority=0)

    def _check_spaces(self) -> None:
        """The first question to the workers, when they have just been started."""
        watched: Any = [_WatchedPipe(self, i, pipe) for i, pipe in enumerate(self.parent_pipes)]
        self.parent_pipes = watched
        try:
            super()._check_spaces()
        except (EOFError, OSError):
            if died := dead_worker(self):
                raise DiscorlError(f"{died} while it was being made") from None
            raise

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        num_errors = sum(not success for success in successes)
        if not num_errors:
            return
        failures = [self.error_queue.get() for _ in range(num_errors)]
        self._state = AsyncState.DEFAULT
        index, kind, message, trace = min(failures, key=itemgetter(0))
        if issubclass(kind, DiscorlError):
            failure = kind(message)
        else:
            failure = EnvFailure(f"environment {index} failed: {kind.__name__}: {message}")
        failure.add_note(f"In the process of environment {index}:\n{trace}")
        raise failure

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        if terminate:
            self._state = AsyncState.DEFAULT  # there is no answer that is worth waiting for
            _kill(self.processes)
        super().close_extras(timeout, terminate)

    @contextmanager
    def _noting_ctrl_c(self) -> Iterator[None]:
        """Keep Ctrl-C from where it would be lost, or only print a traceback.

        That is in a worker that does not ignore it yet, and here while processes are being forked:
        Python drops what is raised in the functions that it calls after a fork.
        """
        before, here = signal.getsignal(signal.SIGINT), os.getpid()
        if not callable(before) or threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(number: int, frame: FrameType | None) -> None:
            del number, frame
            self.was_interrupted = self.was_interrupted or os.getpid() == here

        signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


class _WatchedPipe:
    """A pipe to a worker that is not waited for without end."""

    def __init__(self, envs: ReportingAsyncVectorEnv, index: int, pipe: Connection) -> None:
        # Weak, because in a cycle Python may delete the pipe first, and then the environments that
        # want to close it.
        self._envs, self._index, self._pipe = weakref.proxy(envs), index, pipe
        self._poll = pipe.poll
        if hasattr(select, "poll"):  # a fifth of the time of a pipe's own
            poll = select.poll()
            poll.register(pipe.fileno(), select.POLLIN)
            self._poll = lambda seconds: bool(poll.poll(1000 * seconds))

    def recv(self) -> Any:
        """The worker's answer."""
        minutes = self._envs.timeout_minutes
        slices = 1 + int(minutes * 60 / NOTICE_SECONDS) if self._envs.is_starting else SLICES
        if not any(self._has_answered(minutes * 60 / slices) for _ in range(slices)):
            self._envs.processes[self._index].kill()  # a stopped one would keep us from ending
            raise EnvFailure(
                f"environment {self._index} has not answered for {minutes:g} minutes: its process "
                "hangs or was stopped; if it needs that long, raise the run's --timeout-minutes"
            )
        return self._pipe.recv()

    def _has_answered(self, seconds: float) -> bool:
        answered = self._poll(seconds)
        if not answered and self._envs.is_starting and self._envs.was_interrupted:
            raise KeyboardInterrupt
        return answered

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe, name)


def dead_worker(envs: VectorEnv) -> str | None:
    """Which worker process is gone and how it went; None if all live or there are none."""
    for index, process in enumerate(getattr(envs.unwrapped, "processes", [])):
        process.join(0.1)
        if not process.is_alive():
            return f"environment {index} died (its process ended with code {process.exitcode})"
    return None


def _work(*args: Any) -> None:
    """What a worker runs: Gymnasium's own loop, in peace."""
    # Terminals, batch systems and the like send signals to all processes of a job. The run decides
    # when it ends: a worker that ended by itself would fail the step that the run wants to finish
    # and save. What an environment starts inherits SIG_IGN, but must be able to end by SIGTERM.
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    index, _, pipe, _, _, error_queue, *_ = args
    with suppress(EOFError, OSError):  # the run is gone
        try:
            _async_worker(*args)
        except DiscorlError as e:  # only from the constructor: it reports all that come later
            pipe.recv()
            error_queue.put((index, type(e), str(e), traceback.format_exc()))
            pipe.send((None, False))


def _kill(processes: Iterable[BaseProcess]) -> None:
    """End workers, whatever they do."""
    for process in processes:
        if process.is_alive():
            process.kill()
