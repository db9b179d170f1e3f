"""The queue behind the learning tables: its settings, its outlook, and runs that are stopped."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning import run as runs
from benchmarks.learning.queue import Queue, claimed, expected_seconds, jobs_of, missing, outlook
from benchmarks.learning.run import Job, save, train_arguments
from benchmarks.learning.tasks import FIRST, RULES, TASKS, LearningTask
from discorl.cli.train import parse_train
from discorl.errors import DiscorlError

TINY = LearningTask("tiny-catch", "Catch", "catch:4x3", "tiny", 232)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", TASKS)
def test_settings_are_options_of_train(name: str, rule: str) -> None:
    task = TASKS[name]
    if rule not in task.algorithms:
        return
    try:
        config = parse_train(train_arguments(Job(task, rule, 3))[1:])
    except DiscorlError as e:  # weights or a suite that this machine lacks
        pytest.skip(str(e))
    assert config.seed == 3
    assert 0 <= config.steps * config.env_steps_per_step - task.env_steps < 1000
    if rule == "disco103":
        assert config.env_steps_per_step == task.per_step


def test_the_first_comparison_is_what_it_was() -> None:
    cartpole, lander = FIRST[0], FIRST[1]
    assert cartpole.env_steps == 647 * 16 * 29
    assert "--net.zero-values" in cartpole.options["disco103"]
    assert "--net.no-zero-values" in lander.options["disco103"], "it alone begins with random ones"


def finished(job: Job, seconds: float, folder: Path) -> None:
    content = {"task": job.task.name, "seconds": seconds, "curve": [[job.task.env_steps, 0.0]]}
    save(content, job.result(folder))


def test_outlook_goes_by_the_nearest_runs(tmp_path: Path) -> None:
    other = replace(TINY, name="tiny-other", env_steps=464)
    jobs = jobs_of([TINY, other], ["cmpo", "ppo"], [0, 1])
    assert [job.name for job in jobs[:2]] == ["tiny-catch-cmpo-0", "tiny-catch-ppo-0"]
    assert [job.seed for job in jobs] == [0] * 4 + [1] * 4
    assert outlook(jobs, folder=tmp_path) == "0 of 8 runs done"
    finished(jobs[0], 1800, tmp_path)
    assert expected_seconds(jobs[4], tmp_path) == pytest.approx(1800)
    assert expected_seconds(jobs[2], tmp_path) == pytest.approx(3600), "twice the steps"
    assert expected_seconds(jobs[1], tmp_path) is None
    assert len(missing(jobs, tmp_path)) == 7
    said = outlook(jobs, num_workers=2, folder=tmp_path)
    assert said.startswith("1 of 8 runs done, about 2.9 hours left (guessing at 4")


def test_one_queue_at_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "UNDER_WAY", tmp_path)
    job = Job(TINY, "cmpo", 0)
    with claimed(job) as first, claimed(job) as second:
        assert first and not second
    with claimed(job) as again:
        assert again


@pytest.mark.slow
def test_a_run_that_is_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal to one that was not, but for the time it took."""
    results = []
    for name in ("whole", "cut"):
        monkeypatch.setattr(runs, "UNDER_WAY", tmp_path / name)
        monkeypatch.setattr(Job, "result", _in(tmp_path / name))
        job = Job(replace(TINY, env_steps=256 * 300), "cmpo", 0)
        queue = Queue([job], 1)
        working = threading.Thread(target=queue.work)
        working.start()
        if name == "cut":
            metrics = job.scratch / "run" / "metrics.jsonl"
            while not metrics.exists() or metrics.stat().st_size == 0:
                time.sleep(0.1)
            queue.stop()
        working.join()
        if name == "cut":
            assert not job.result().exists()
            Queue([job], 1).work()
        results.append(json.loads(job.result().read_text()) | {"seconds": 0})
        assert not job.scratch.exists()
    assert results[0] == results[1]
    assert results[0]["curve"][-1][1] > 0.9


def _in(folder: Path) -> Any:
    return lambda job, *_: folder / f"{job.name}.json"
