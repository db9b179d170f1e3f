"""Several processes at a time, each with a run of its own; those that are killed start again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from discorl.runs.interrupt import StopRequest
from discorl.tuning.worker import FAILED, WAS_PRUNED

PAUSE = 0.2
"""Seconds between two looks at the processes."""
MAX_RETRIES = 2


@dataclass
class Process:
    """A run that is under way."""

    folder: Path
    child: subprocess.Popen[bytes]
    retries: int = 0


def run_all(
    next_folder: Callable[[], Path | None],
    ended: Callable[[Path, int], None],
    jobs: int,
) -> bool:
    """Train in folders until there are no more, ``jobs`` at a time; False if it was stopped early.

    ``next_folder`` has written what to train (``worker.write_job``); ``ended`` is told the exit
    code. A process that a signal has killed is started again, and resumes its run.
    """
    running: list[Process] = []
    is_empty = False
    with StopRequest(patient=True) as stop:
        try:
            while not stop.requested:
                while len(running) < jobs and not is_empty:
                    folder = next_folder()
                    is_empty = folder is None
                    if folder is not None:
                        running.append(Process(folder, _start(folder, jobs)))
                if not running:
                    return True
                time.sleep(PAUSE)
                running = [p for p in running if not _is_over(p, jobs, ended)]
            return False
        finally:
            _stop(running)


def _start(folder: Path, jobs: int) -> subprocess.Popen[bytes]:
    threads = max(1, (os.cpu_count() or 1) // jobs)
    limits = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with log_file(folder).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "discorl.tuning.worker", str(folder), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | limits,
            start_new_session=True,  # a Ctrl-C is passed on once, by this process
        )


def log_file(folder: Path) -> Path:
    """What a process has said."""
    return folder.with_name(f"{folder.name}.log")


def last_words(folder: Path) -> str:
    """The last line of it."""
    lines = log_file(folder).read_text(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("error: ") if lines else "it said nothing"


def _is_over(process: Process, jobs: int, ended: Callable[[Path, int], None]) -> bool:
    if (code := process.child.poll()) is None:
        return False
    if code not in (0, FAILED, WAS_PRUNED) and process.retries < MAX_RETRIES:
        process.retries += 1
        process.child = _start(process.folder, jobs)
        return False
    ended(process.folder, code)
    return True


def _stop(running: list[Process]) -> None:
    """Let all of them save what they have."""
    for process in running:
        if process.child.poll() is None:
            process.child.send_signal(signal.SIGTERM)
    for process in running:
        process.child.wait()
