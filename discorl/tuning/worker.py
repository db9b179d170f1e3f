"""One run of many, in a process of its own: ``python -m discorl.tuning.worker FOLDER PARENT``.

``FOLDER.json`` says what to train; the run in FOLDER is begun, or resumed if it was begun before.
PARENT is the number of the process that waits for it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from discorl.bounded import parse_json, read_bytes
from discorl.errors import DiscorlError
from discorl.runs.config_file import MAX_CONFIG_BYTES, from_json
from discorl.runs.files import HoldsRun, InUse, write_json
from discorl.training.callback import RunView
from discorl.training.config import TrainConfig
from discorl.training.rule_choice import read_config
from discorl.training.train import resume, train

FAILED, WAS_PRUNED, STOPPED = 2, 3, 130
"""Exit codes: the settings or the environment are at fault, others do better, or someone wants it
to stop."""
PRUNED = "pruned"
ALONE = "nobody waits for it any more"
PATIENCE = 120.0
"""Seconds to wait for the process of a search that was killed: it ends after its step."""
PAUSE = 0.2


class Trial(NamedTuple):
    """Where a study keeps its trials, and which of them this is."""

    journal: str
    study: str
    number: int
    budget: int
    """Environment steps of a trial that runs to its end."""


def job_file(folder: Path) -> Path:
    """What says what to train in a folder."""
    return folder.with_name(f"{folder.name}.json")


def write_job(folder: Path, config: dict[str, Any], trial: Trial | None = None) -> None:
    """Say what to train in a folder."""
    write_json(job_file(folder), {"config": config, "trial": trial and list(trial)})


def main(folder: Path, parent: int) -> int:
    """Train as the file beside the folder says; returns the exit code."""
    job = parse_json(read_bytes(job_file(folder), MAX_CONFIG_BYTES))
    watch = _parent_watch(parent)
    if job["trial"]:
        from discorl.tuning.study import reporter  # only here: Optuna is an extra

        watch = _both(watch, reporter(Trial(*job["trial"])))
    give_up = time.monotonic() + PATIENCE
    while True:
        if os.getppid() != parent:
            return STOPPED
        try:
            if (folder / "config.json").exists():
                done = resume(read_config(folder)[0], callback=watch)
            else:
                config = from_json(TrainConfig, job["config"] | {"out": str(folder)})
                done = train(config, callback=watch)
            break
        except DiscorlError as e:
            if isinstance(e, InUse | HoldsRun) and time.monotonic() < give_up:
                time.sleep(PAUSE)
                continue
            print(f"error: {e}", file=sys.stderr)
            return FAILED
    if done.interrupted or done.stopped == ALONE:
        return STOPPED
    return WAS_PRUNED if done.stopped == PRUNED else 0


def _parent_watch(parent: int) -> Callable[[RunView], None]:
    """Stops the run if the process that started it is gone: another may resume it soon."""

    def look(run: RunView) -> None:
        if os.getppid() != parent:
            run.stop(ALONE)

    return look


def _both(*callbacks: Callable[[RunView], None]) -> Callable[[RunView], None]:
    def look(run: RunView) -> None:
        for callback in callbacks:
            callback(run)

    return look


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
