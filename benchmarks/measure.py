"""Ask workers in turn, and make medians, spreads and ratios of what they answer."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.jobs import MEMORY_JOBS, TimedJob
from benchmarks.workers import Implementation, Worker, WorkerError

PAUSE = 0.3
"""Seconds between workers, for the threads of the last one to fall asleep."""


@dataclass
class Timings:
    """What one worker took for one job."""

    rounds: list[list[float]] = field(default_factory=list)
    """Seconds, a list for each round."""
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(x for seconds in self.rounds for x in seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        return quartiles([x for seconds in self.rounds for x in seconds])


@dataclass
class Session:
    """Everything a run found out."""

    timings: dict[str, dict[str, Timings]] = field(default_factory=dict)
    """By job, then by implementation."""
    memory: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    """By job, then by implementation: ``start`` (libraries loaded) and ``peak`` bytes."""
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    """Implementations that could not be had, and why."""
    failed: dict[str, dict[str, str]] = field(default_factory=dict)
    """By job, then by implementation: work that was not done, and why."""
    busy: list[float] = field(default_factory=list)
    """Share of the machine's time that somebody used while all workers were silent."""


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The first and the third."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def ratio_by_round(peer: Timings, ours: Timings) -> list[float]:
    """Peer's time divided by ours, round by round: what the two took within the same minute."""
    pairs = zip(peer.rounds, ours.rounds, strict=True)
    return [statistics.median(p) / statistics.median(o) for p, o in pairs]


def time_jobs(
    session: Session,
    implementations: Sequence[Implementation],
    jobs: Sequence[TimedJob],
    rounds: int,
    threads: int,
    quick: bool,
    clock: str = "seconds",
) -> None:
    """Start a worker for each implementation; time the jobs round by round, worker by worker.

    ``clock`` is ``seconds``, or ``processor_seconds`` for those that a worker's threads computed.
    """
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for implementation in implementations:
            try:
                worker = stack.enter_context(Worker(implementation, threads))
            except WorkerError as e:
                session.absent[implementation.name] = str(e)
                continue
            workers[implementation.name] = worker
            session.facts[implementation.name] = worker.facts
        for job in jobs:
            _make_ready(session, workers, job)
        for i in range(rounds):
            session.busy.append(busy_share())
            print(
                f"round {i + 1} of {rounds} (others use {session.busy[-1]:.0%} of the machine)",
                flush=True,
            )
            for job in jobs:
                _time_round(session, workers, job, i, 1 if quick else job.repeats, clock)


def _make_ready(session: Session, workers: dict[str, Worker], job: TimedJob) -> None:
    """Prepare, compile and warm up, before anything is timed."""
    print(f"getting ready: {job.title}", flush=True)
    timings = session.timings.setdefault(job.name, {})
    for name, worker in workers.items():
        try:
            reply = worker.ask(job.work, job.options, repeats=0)
        except WorkerError as e:
            session.failed.setdefault(job.name, {})[name] = str(e)
        else:
            timings[name] = Timings(figures=reply["figures"])


def _time_round(
    session: Session,
    workers: dict[str, Worker],
    job: TimedJob,
    i: int,
    repeats: int,
    clock: str,
) -> None:
    """Ask everyone who can do the job, each round another one first."""
    timings = session.timings[job.name]
    names = list(timings)
    for name in names[i % len(names) :] + names[: i % len(names)] if names else []:
        time.sleep(PAUSE)
        try:
            reply = workers[name].ask(job.work, job.options, repeats)
        except WorkerError as e:
            session.failed.setdefault(job.name, {})[name] = str(e)
            del timings[name]
        else:
            times = _share_of_units(job, timings[name].figures)
            timings[name].rounds.append([times * x for x in reply[clock]])


def _share_of_units(job: TimedJob, figures: dict[str, float]) -> float:
    """What to multiply a time by, to have it for as many units as the job's."""
    done = figures.get("units", job.earlier_units)
    return job.units / done if job.units and done else 1.0


def measure_memory(
    session: Session, implementations: Sequence[Implementation], threads: int
) -> None:
    """Peak memory of some jobs, each implementation and job in a process that does only that."""
    for job, implementation in itertools.product(MEMORY_JOBS, implementations):
        name = implementation.name
        if name in session.absent:
            continue
        try:
            with Worker(implementation, threads) as worker:
                reply = worker.ask(job.work, job.options, repeats=5)
        except WorkerError as e:
            session.failed.setdefault(f"memory of {job.name}", {})[name] = str(e)
        else:
            figures = {"start": worker.start_bytes, "peak": reply["peak_bytes"]}
            session.memory.setdefault(job.name, {})[name] = figures
            session.facts.setdefault(name, worker.facts)


def busy_share(seconds: float = 1.0) -> float:
    """Share of the machine's processor time in use, watched for a while; 0 where unknown."""
    before = _processor_time()
    time.sleep(seconds)
    busy, total = (b - a for a, b in zip(before, _processor_time(), strict=True))
    return busy / total if total else 0.0


def _processor_time() -> tuple[int, int]:
    """Busy and total so far, of all processors."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0, 0
    times = [int(x) for x in stat.read_text().splitlines()[0].split()[1:9]]
    idle = times[3] + times[4]
    return sum(times) - idle, sum(times)
