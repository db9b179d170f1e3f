"""The queue: which runs are missing, how long they will take, and working through them."""

from __future__ import annotations

import fcntl
import itertools
import json
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmarks.learning.run import RUNS, Job, StoppedError, run_job, started
from benchmarks.learning.tasks import LearningTask


def jobs_of(
    tasks: Sequence[LearningTask], algorithms: Sequence[str], seeds: Sequence[int]
) -> list[Job]:
    """Seeds outermost: a queue that is stopped early has some of everything."""
    return [
        Job(task, algorithm, seed)
        for seed, task, algorithm in itertools.product(seeds, tasks, algorithms)
        if algorithm in task.algorithms
    ]


def missing(jobs: Sequence[Job], folder: Path = RUNS) -> list[Job]:
    """Those without a result."""
    return [job for job in jobs if not job.result(folder).exists()]


def expected_seconds(job: Job, folder: Path = RUNS) -> float | None:
    """What runs like it took; None if there was none.

    The nearest count: of the same task and algorithm, else of the algorithm in the same suite, in
    proportion to the environment steps.
    """
    rates: dict[bool, list[float]] = {True: [], False: []}
    for path in folder.glob(f"{job.task.suite}-*-{job.algorithm}-*.json"):
        done = json.loads(path.read_text())
        rates[done["task"] == job.task.name].append(done["seconds"] / done["curve"][-1][0])
    nearest = rates[True] or rates[False]
    return job.task.env_steps * sum(nearest) / len(nearest) if nearest else None


def outlook(jobs: Sequence[Job], num_workers: int = 1, folder: Path = RUNS) -> str:
    """How many runs are left, and for how long."""
    left = missing(jobs, folder)
    seconds = [expected_seconds(job, folder) for job in left]
    known = [x for x in seconds if x is not None]
    text = f"{len(jobs) - len(left)} of {len(jobs)} runs done"
    if known:
        mean = sum(known) / len(known)
        text += f", about {mean * len(left) / num_workers / 3600:.1f} hours left"
        if unknown := len(left) - len(known):
            text += f" (guessing at {unknown} of a kind that has not been run)"
    return text


class Queue:
    """Works through jobs with several workers, until all are done or it is told to stop."""

    def __init__(self, jobs: Sequence[Job], num_workers: int, python: Path | None = None) -> None:
        self._jobs, self._num_workers, self._python = jobs, num_workers, python
        self._waiting = iter(missing(jobs))
        self._lock = threading.Lock()
        self._running: list[subprocess.Popen[str]] = []
        self._stopped = False

    def work(self) -> None:
        """Returns when nothing is left, or once everything under way has been stopped."""
        with ThreadPoolExecutor(self._num_workers) as workers:
            working = [workers.submit(self._work) for _ in range(self._num_workers)]
            try:
                for one in working:
                    one.result()
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """Ask what is under way to stop; our own runs keep a checkpoint."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.terminate()

    def _work(self) -> None:
        while job := self._next():
            with claimed(job) as is_ours:
                if not is_ours or job.result().exists():
                    continue
                print(f"{time.strftime('%H:%M:%S')} {job.name}", flush=True)
                try:
                    run_job(job, self._start, self._python)
                except StoppedError:
                    print(f"  {job.name}: stopped, and goes on next time", flush=True)
                    return
            print(f"  {job.name}: done. {outlook(self._jobs, self._num_workers)}", flush=True)

    def _next(self) -> Job | None:
        with self._lock:
            return None if self._stopped else next(self._waiting, None)

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        with self._lock:
            if self._stopped:
                raise StoppedError
            process = started(command)
            self._running.append(process)
        return process


@contextmanager
def claimed(job: Job) -> Iterator[bool]:
    """Whether nobody else is at this job; nobody can be until the end of the block."""
    job.scratch.parent.mkdir(parents=True, exist_ok=True)
    with open(job.scratch.with_suffix(".lock"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
