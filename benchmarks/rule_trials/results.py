"""What was run, a small file for each contestant and task. What has a file is not run again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import commit
from benchmarks.rule_trials.contestants import Contestant, Score
from discorl.atomic import write_atomically

RESULTS = Path(__file__).parent.parent / "results"
FOLDER = RESULTS / "rule-trials"
SEEDS = range(8)
TUNING_SEEDS = (100, 101, 102, 103, 104)
NUM_FINALISTS = 6


def path_of(contestant: str, task: str) -> Path:
    """Where the result is kept."""
    return FOLDER / contestant / f"{task.replace(':', '-')}.json"


def read(contestant: str, task: str) -> dict[str, Any] | None:
    """The result, if there is one."""
    path = path_of(contestant, task)
    return json.loads(path.read_text()) if path.is_file() else None


def run(contestant: Contestant, task: str) -> None:
    """Tune it if it has more than one setting, train it with all seeds, keep the scores."""
    settings = contestant.settings(task)
    chosen = tuned(settings)
    scores = [settings[chosen](seed) for seed in SEEDS]
    content = {
        "contestant": contestant.name,
        "task": task,
        "setting": chosen,
        "scores": scores,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
    path = path_of(contestant.name, task)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


def tuned(settings: dict[str, Score]) -> str:
    """The best setting, by seeds of their own: all with one of them, then the best with more."""
    if len(settings) == 1:
        return next(iter(settings))

    def mean(name: str, seeds: Iterable[int]) -> float:
        return float(np.mean([settings[name](seed) for seed in seeds]))

    first, *more = TUNING_SEEDS
    finalists = list(settings)
    if len(finalists) > NUM_FINALISTS:
        finalists = sorted(finalists, key=lambda name: mean(name, [first]))[-NUM_FINALISTS:]
    return max(finalists, key=lambda name: mean(name, more))
