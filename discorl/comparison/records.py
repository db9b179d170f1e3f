"""Reading run folders back: what was run, and what it logged."""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from discorl.bounds import shown
from discorl.comparison.statistics import Array
from discorl.errors import DiscorlError
from discorl.runs.checkpoint import CheckpointFolder
from discorl.runs.config_file import NoRun, kind_of, read_config_file
from discorl.runs.metrics import Due, Row, Rows, name_steps

ALWAYS = ("env_steps", "seconds")
METRICS = ("return", "success")

MAX_NUMBER = 1e200
"""Of what is compared: sums and areas of larger numbers would be infinite."""


@dataclass(frozen=True)
class RunRecord:
    """A run as its folder describes it."""

    folder: Path
    task: str
    rule: str
    seed: int
    config: dict[str, Any]
    logged: Logged
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Logged:
    """What is compared of metrics.jsonl: a number for each line, their steps increasing."""

    env_steps: Array
    seconds: Array
    metrics: dict[str, Array]
    """NaN where a line has none."""

    def has(self, metric: str) -> bool:
        """Whether any line has this metric."""
        return bool((~np.isnan(self.metrics[metric])).any())

    def having(self, metric: str) -> tuple[Array, Array, Array]:
        """Environment steps, seconds and the metric, of the lines that have it."""
        values = self.metrics[metric]
        there = ~np.isnan(values)
        return self.env_steps[there], self.seconds[there], values[there]


def find_runs(paths: Sequence[PathLike[str] | str]) -> list[Path]:
    """The runs named, and those directly inside a named folder that is not a run itself.

    Raises if there is no run at all; of several folders, some may hold none.
    """
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise DiscorlError(f"{path} is not a folder: name run folders, or a folder of them")
        inside = sorted(p.parent for p in path.glob("*/config.json"))
        for folder in [path] if (path / "config.json").exists() else inside or [path]:
            found.setdefault(folder.resolve(), folder)
    if not any((folder / "config.json").exists() for folder in found):
        named = ", ".join(os.fspath(path) for path in paths)
        raise DiscorlError(f"there is no run in {named}: no config.json there or one folder down")
    return list(found.values())


def read_run(folder: Path) -> RunRecord:
    """A run's configuration and metrics; raises ``NoRun`` where there is nothing to compare."""
    config = read_config_file(folder)
    if kind_of(config) == "discover":
        raise NoRun(f"{folder} is a discovery run")
    for name, kind in (("task", str), ("rule", str), ("seed", int)):
        if not isinstance(config.get(name), kind):
            raise DiscorlError(
                f"{folder / 'config.json'} does not say which {name} was run: is it the "
                "configuration of a run?"
            )
    logged, notes = read_metrics(folder, Due.of(config))
    return RunRecord(folder, config["task"], config["rule"], config["seed"], config, logged, notes)


def read_metrics(folder: Path, due: Due) -> tuple[Logged, tuple[str, ...]]:
    """The numbers in metrics.jsonl, and what is odd about them.

    If a run was resumed from before its last row, the rows that were written again replace the
    earlier ones.
    """
    path = folder / "metrics.jsonl"
    if not path.exists():
        raise NoRun(f"{folder} has no metrics.jsonl: the run never started")
    # Looked at first: a run that is still going may log and save more while it is read.
    saved = max(CheckpointFolder(folder / "checkpoints").steps(), default=0)
    steps = array("q")
    columns = {name: array("d") for name in (*ALWAYS, *METRICS)}
    env_steps = columns["env_steps"]
    for number, row in enumerate(Rows(path), start=1):
        if reason := _oddity(row):
            raise DiscorlError(f"{path} is damaged at line {number}: {reason}")
        while env_steps and env_steps[-1] >= row["env_steps"]:
            for values in (steps, *columns.values()):
                values.pop()
        steps.append(row["step"])
        for name, values in columns.items():
            values.append(row.get(name, math.nan))
    if not steps:
        raise NoRun(f"{path} is empty: the run ended before its first line")
    notes = []
    if not _ends_a_line(path):
        notes.append(f"{folder}: the last line of metrics.jsonl is cut short; left out")
    if gaps := due.gaps(steps, saved):
        notes.append(
            f"{folder}: metrics.jsonl has no rows for {name_steps(gaps)}; the curve is a straight "
            "line there"
        )
    numbers = {name: np.array(values) for name, values in columns.items()}
    metrics = {name: numbers[name] for name in METRICS}
    return Logged(numbers["env_steps"], numbers["seconds"], metrics), tuple(notes)


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def _oddity(row: Row) -> str:
    """What is wrong with a row, if anything is."""
    for name in ALWAYS:
        if name not in row:
            return f"it has no {name}"
    for name in (*ALWAYS, *METRICS):
        value = row.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"its {name} is not a number"
        if not abs(value) <= MAX_NUMBER:
            return f"its {name} is {shown(value)}"
    return ""
