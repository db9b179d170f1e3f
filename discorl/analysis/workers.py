"""Jobs of an analysis, one after the other or in several processes, and a run as such a job."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, parent_process
from pathlib import Path
from typing import Any

import torch

from discorl.errors import DiscorlError
from discorl.runs import distributed
from discorl.runs.checkpoint import CheckpointFolder
from discorl.runs.distributed import Ranks
from discorl.runs.program import Program
from discorl.runs.progress import RunProgress
from discorl.runs.run import run

MOST_WORKERS = 4
"""Each of them holds the agents of a task in memory."""
POLL_SECONDS = 0.5

Tick = Callable[[int], None]
"""Says that so many steps are done."""


@dataclass(frozen=True)
class Job:
    """A function that is called with these arguments and a ``Tick``, perhaps in another process."""

    function: Callable[..., Any]
    args: tuple[Any, ...]


def num_workers() -> int:
    """As many as there are cores for this process, up to a few."""
    allowed = getattr(os, "sched_getaffinity", None)  # not everywhere
    return min(MOST_WORKERS, len(allowed(0)) if allowed else os.cpu_count() or 1)


@contextmanager
def shown_progress(progress: RunProgress) -> Iterator[Tick]:
    """A tick that moves a progress bar."""
    with progress:
        count = 0

        def tick(steps: int) -> None:
            nonlocal count
            count += steps
            progress.update(count, {})

        yield tick


def run_to_end(make: Callable[[Any, Ranks], Program], config: Any, tick: Tick) -> bool:
    """Run a program, unless that is done, or go on with it; returns whether it is done."""
    folder = Path(str(config.out))
    steps = CheckpointFolder(folder / "checkpoints").steps()
    tick(steps[-1] if steps else 0)
    if steps and steps[-1] >= config.steps:
        return True
    with distributed.joined("cpu") as ranks:
        program = make(config, ranks)
        step = program.step

        def step_and_tick(folder: Path) -> None:
            step(folder)
            tick(1)

        program.step = step_and_tick
        return not run(program, resume=(folder / "config.json").exists()).interrupted


def results(jobs: Sequence[Job], workers: int, tick: Tick) -> Iterator[tuple[Job, Any]]:
    """Each job with what it returned, as they end; with one worker in order and in this process."""
    if workers == 1 or len(jobs) < 2:
        for job in jobs:
            yield job, job.function(*job.args, tick)
        return
    context = multiprocessing.get_context("spawn")
    counter, is_stopped = context.Value("q", 0), context.Event()
    pool = ProcessPoolExecutor(
        min(workers, len(jobs)), context, _begin_worker, (counter, is_stopped)
    )
    try:
        waiting: dict[Future[Any], Job] = {pool.submit(_do, job): job for job in jobs}
        seen = 0
        while waiting:
            done, _ = wait(waiting, POLL_SECONDS, FIRST_COMPLETED)
            if (count := counter.value) > seen:
                tick(count - seen)
                seen = count
            for future in done:
                yield waiting.pop(future), future.result()
    except BrokenProcessPool:  # the pool has ended the others
        raise DiscorlError(
            "a process of this analysis was killed, perhaps because memory ran out: run the same "
            "command again, which continues"
        ) from None
    except BaseException:
        # Runs under way keep what they have done, analyses end at once. A terminal's Ctrl-C has
        # reached runs already, and a second one would break off their last checkpoint. The pool
        # has handed out one or two more jobs, which must not begin.
        is_stopped.set()
        for process in active_children():
            if process.pid is not None:
                os.kill(process.pid, signal.SIGTERM)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_counter: Any = None
_is_stopped: Any = None


def _begin_worker(counter: Any, is_stopped: Any) -> None:
    """One thread for each process, and none that outlives the one that started it."""
    global _counter, _is_stopped
    _counter, _is_stopped = counter, is_stopped
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it passes it on
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _do(job: Job) -> Any:
    if _is_stopped.is_set():
        return None

    def tick(steps: int) -> None:
        with _counter.get_lock():
            _counter.value += steps

    return job.function(*job.args, tick)
