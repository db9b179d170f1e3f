"""Reading run folders back: what was run, and what it logged."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from discorl.errors import DiscorlError

Row = dict[str, Any]


@dataclass(frozen=True)
class RunRecord:
    """A run as its folder tells it."""

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


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Run folders: those named, and those directly inside a named folder that is not one itself."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise DiscorlError(f"{path} is not a folder: name run folders, or a folder of them")
        inside = sorted(p.parent for p in path.glob("*/config.json"))
        folders = [path] if (path / "config.json").exists() else inside
        if not folders:
            raise DiscorlError(
                f"{path} is not a run: neither it nor a folder in it has a config.json"
            )
        for folder in folders:
            found.setdefault(folder.resolve(), folder)
    return list(found.values())


def is_discovery(folder: Path) -> bool:
    """Whether it is a run of ``discorl discover``, which trains no single agent."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and config.get("kind") == "discover"


def read_run(folder: Path) -> RunRecord:
    """A run's configuration and metrics."""
    config = read_config(folder)
    rows, notes = read_metrics(folder)
    return RunRecord(
        folder, config["task"], config["rule"], config["seed"], config, rows, tuple(notes)
    )


def read_config(folder: Path) -> dict[str, Any]:
    """The run's config.json."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DiscorlError(f"{folder} is not a run: it has no config.json") from None
    except (ValueError, RecursionError):
        raise DiscorlError(f"{path} is damaged: it is not JSON") from None
    except OSError as e:
        raise DiscorlError(f"cannot read {path}: {e.strerror}") from None
    kinds = {"task": str, "rule": str, "seed": int}
    for name, kind in kinds.items():
        if not isinstance(config, dict) or not isinstance(config.get(name), kind):
            raise DiscorlError(
                f"{path} does not say which {name} was run: is it the configuration of a run?"
            )
    return config


def read_metrics(folder: Path) -> tuple[list[Row], list[str]]:
    """The lines of metrics.jsonl, and what is odd about them.

    A last line that was cut short is left out. Where a run was resumed from before its last line,
    the lines that were written again replace those of the first time.
    """
    path = folder / "metrics.jsonl"
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        raise DiscorlError(f"{folder} has no metrics.jsonl: the run never began") from None
    except OSError as e:
        raise DiscorlError(f"cannot read {path}: {e.strerror}") from None
    rows: list[Row] = []
    notes: list[str] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = _checked(json.loads(line))
        except (ValueError, RecursionError) as e:
            if number == len(lines):
                notes.append(f"{folder}: the last line of metrics.jsonl is cut short; left out")
                break
            raise DiscorlError(f"{path} is damaged at line {number}: {_reason(e)}") from None
        while rows and rows[-1]["env_steps"] >= row["env_steps"]:
            rows.pop()
        rows.append(row)
    if not rows:
        raise DiscorlError(
            f"{path} is empty: the run ended before its first line; leave it out or train on"
        )
    return rows, notes


def _checked(row: Any) -> Row:
    if not isinstance(row, dict):
        raise ValueError("it is not an object")
    for name in ("env_steps", "seconds"):
        if name not in row:
            raise ValueError(f"it has no {name}")
    for name in ("env_steps", "seconds", "return", "success"):
        value = row.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"its {name} is not a number")
        if not math.isfinite(value):
            raise ValueError(f"its {name} is {value}")
    return row


def _reason(error: BaseException) -> str:
    return "it is not JSON" if isinstance(error, json.JSONDecodeError) else str(error)
