"""Jobs in this process and in others: the same results, and an end that is one."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from discorl.analysis.workers import Job, Tick, results
from discorl.errors import DiscorlError
from discorl.runs.interrupt import StopRequest


def doubled(x: int, tick: Tick) -> tuple[int, int]:
    tick(x)
    return 2 * x, os.getpid()


def worked(folder: str, name: int, tick: Tick) -> None:
    """Work that is asked to end as runs are, and says so."""
    with StopRequest() as asked:
        (Path(folder) / f"begun-{name}").touch()
        tick(1)
        while not asked.requested:
            time.sleep(0.01)
    (Path(folder) / f"ended-{name}").touch()


def failed(tick: Tick) -> None:
    raise ValueError("a job that fails")


def killed(tick: Tick) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("workers", [1, 2])
def test_each_job_is_done_once(workers: int) -> None:
    ticks: list[int] = []
    jobs = [Job(doubled, (i,)) for i in range(5)]
    found = [(job.args[0], x) for job, x in results(jobs, workers, ticks.append)]
    assert sorted((i, x) for i, (x, _) in found) == [(i, 2 * i) for i in range(5)]
    assert sum(ticks) == sum(range(5))
    assert (os.getpid() in {pid for _, (_, pid) in found}) == (workers == 1)


@pytest.mark.parametrize("workers", [1, 2])
def test_no_jobs_are_no_results(workers: int) -> None:
    assert not list(results([], workers, lambda steps: None))


def test_what_fails_in_another_process_fails_here() -> None:
    with pytest.raises(ValueError, match="a job that fails"):
        list(results([Job(failed, ()), Job(failed, ())], 2, lambda steps: None))


def test_a_process_that_is_killed_is_an_error_in_a_line() -> None:
    with pytest.raises(DiscorlError, match=r"killed.*same command again"):
        list(results([Job(killed, ()), Job(killed, ())], 2, lambda steps: None))


def test_ctrl_c_ends_jobs_under_way_and_begins_no_others(tmp_path: Path) -> None:
    begun = 0

    def tick(steps: int) -> None:
        nonlocal begun
        begun += steps
        if begun == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(results([Job(worked, (str(tmp_path), i)) for i in range(6)], 2, tick))
    found = sorted(p.name for p in tmp_path.iterdir())
    assert found == ["begun-0", "begun-1", "ended-0", "ended-1"]
