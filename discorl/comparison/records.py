"""Reading run folders back: what was run, and what it logged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from discorl.bounds import shown
from discorl.errors import DiscorlError
from discorl.runs.config_file import NoRun, kind_of, read_config_file
from discorl.runs.metrics import Row, read_rows

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
    rows: list[Row]
    """Lines of metrics.jsonl, their steps increasing."""
    notes: tuple[str, ...] = ()

    def has(self, metric: str) -> bool:
        """Whether any line has this metric."""
        return any(metric in row for row in self.rows)


def find_runs(paths: Sequence[Path | str]) -> list[Path]:
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
        named = ", ".join(map(str, paths))
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
    rows, notes = read_metrics(folder)
    return RunRecord(folder, config["task"], config["rule"], config["seed"], config, rows, notes)


def read_metrics(folder: Path) -> tuple[list[Row], tuple[str, ...]]:
    """The rows of metrics.jsonl, and what is odd about them.

    If a run was resumed from before its last row, the rows that were written again replace the
    earlier ones.
    """
    path = folder / "metrics.jsonl"
    if not path.exists():
        raise NoRun(f"{folder} has no metrics.jsonl: the run never started")
    rows: list[Row] = []
    for number, row in enumerate(read_rows(path), start=1):
        if reason := _oddity(row):
            raise DiscorlError(f"{path} is damaged at line {number}: {reason}")
        while rows and rows[-1]["env_steps"] >= row["env_steps"]:
            rows.pop()
        rows.append(row)
    if not rows:
        raise NoRun(f"{path} is empty: the run ended before its first line")
    if path.read_bytes().endswith(b"\n"):
        return rows, ()
    return rows, (f"{folder}: the last line of metrics.jsonl is cut short; left out",)


def _oddity(row: Row) -> str:
    """What is wrong with a row, if anything is."""
    for name in ("env_steps", "seconds"):
        if name not in row:
            return f"it has no {name}"
    for name in ("env_steps", "seconds", "return", "success"):
        value = row.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"its {name} is not a number"
        if not abs(value) <= MAX_NUMBER:
            return f"its {name} is {shown(value)}"
    return ""
