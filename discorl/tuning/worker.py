"""One run of many, in a process of its own: ``python -m discorl.tuning.worker FOLDER``.

``FOLDER.json`` says what to train; the run in FOLDER is begun, or resumed if it was begun before.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from discorl.bounded import parse_json, read_bytes
from discorl.errors import DiscorlError
from discorl.runs.config_file import MAX_CONFIG_BYTES, from_json
from discorl.runs.files import write_json
from discorl.training.callback import RunView
from discorl.training.config import TrainConfig
from discorl.training.rule_choice import read_config
from discorl.training.train import resume, train

FAILED, WAS_PRUNED, STOPPED = 2, 3, 130
"""Exit codes: the settings or the environment are at fault, others do better, or someone wants it
to stop."""
PRUNED = "pruned"
ALONE = "nobody waits for it any more"


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


def main(folder: Path) -> int:
    """Train as the file beside the folder says; returns the exit code."""
    job = parse_json(read_bytes(job_file(folder), MAX_CONFIG_BYTES))
    watch = _parent_watch()
    if job["trial"]:
        from discorl.tuning.study import reporter  # only here: Optuna is an extra

        watch = _both(watch, reporter(Trial(*job["trial"])))
    try:
        if (folder / "config.json").exists():
            done = resume(read_config(folder)[0], callback=watch)
        else:
            config = from_json(TrainConfig, job["config"] | {"out": str(folder)})
            done = train(config, callback=watch)
    except DiscorlError as e:
        print(f"error: {e}", file=sys.stderr)
        return FAILED
    if done.interrupted or done.stopped == ALONE:
        return STOPPED
    return WAS_PRUNED if done.stopped == PRUNED else 0


def _parent_watch() -> Callable[[RunView], None]:
    """Stops the run if the process that started it is gone: another may resume it soon."""
    parent = os.getppid()

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
    sys.exit(main(Path(sys.argv[1])))
