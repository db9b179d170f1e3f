"""The same over tasks, rules and seeds: a run for each, several at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

from discorl.bounded import parse_json, read_bytes
from discorl.bounds import MAX_AT_ONCE, check_between
from discorl.comparison.compare import compare
from discorl.comparison.result import Comparison
from discorl.errors import DiscorlError
from discorl.runs.config_file import MAX_CONFIG_BYTES
from discorl.runs.files import held, write_json
from discorl.runs.terminal import say
from discorl.training.config import TrainConfig
from discorl.tuning.pool import last_words, run_all
from discorl.tuning.worker import job_file, write_job

FINISHED = "sweep.json"
"""The runs that are finished."""


@dataclass(frozen=True)
class SweepResult:
    """Many runs in one folder."""

    folder: Path
    finished: list[str]
    failed: dict[str, str]
    """What those that failed have said last, by name."""
    interrupted: bool

    def compare(self) -> Comparison:
        """The runs that are finished, side by side."""
        return compare([self.folder / name for name in self.finished])


def sweep(
    configs: Sequence[TrainConfig],
    out: Path | str,
    jobs: int = 1,
    console: Console | None = None,
) -> SweepResult:
    """Train with each of the settings, in folders below ``out`` that are named after them.

    What is finished there is kept, and what was begun is resumed: after Ctrl-C or a crash, call it
    again.
    """
    check_between(1, MAX_AT_ONCE, "jobs", jobs)
    console, out = console or Console(), Path(out)
    folders = {out / run_name(config): config for config in configs}
    if len(folders) < len(configs):
        raise DiscorlError("two of the runs have the same task, rule and seed: name each once")
    out.mkdir(parents=True, exist_ok=True)
    with held(out):
        finished = _finished(out)
        for folder, config in folders.items():
            _prepare(folder, config)
        todo = [folder for folder in folders if folder.name not in finished]
        failed: dict[str, str] = {}
        left = iter(todo)

        def ended(folder: Path, code: int) -> None:
            if code == 0:
                finished.append(folder.name)
                write_json(out / FINISHED, finished)
            else:
                failed[folder.name] = last_words(folder)
            say(console, _ended(folder, failed, len(finished), len(folders)))

        is_whole = run_all(lambda: next(left, None), ended, jobs)
    names = [folder.name for folder in folders if folder.name in finished]
    return SweepResult(out, names, failed, not is_whole)


def with_equal_budgets(configs: Sequence[TrainConfig]) -> list[TrainConfig]:
    """The same runs, but all on a task take as many environment steps as the longest of them.

    Presets differ in how many a training step takes, and what took more of them would look better.
    """
    totals: dict[str, set[int]] = {}
    for config in configs:
        totals.setdefault(config.task, set()).add(config.steps * config.env_steps_per_step)
    return [
        replace(config, env_steps=max(totals[config.task]))
        if config.env_steps is None and len(totals[config.task]) > 1
        else config
        for config in configs
    ]


def run_name(config: TrainConfig) -> str:
    """A name for the folder of a run, by task, rule and seed."""
    rule = Path(config.rule).stem if "/" in config.rule else config.rule
    return re.sub(r"[^\w.-]+", "-", f"{config.task}-{rule}-{config.seed}")


def _finished(out: Path) -> list[str]:
    path = out / FINISHED
    names = parse_json(read_bytes(path, MAX_CONFIG_BYTES)) if path.exists() else []
    if not isinstance(names, list):
        raise DiscorlError(f"{path} is not the list of a sweep: remove it to look at every run")
    return [str(name) for name in names]


def _prepare(folder: Path, config: TrainConfig) -> None:
    """Say what to train; raises if something else was begun there."""
    settings = asdict(config) | {"out": str(folder), "progress": "none"}
    plain = json.loads(json.dumps(settings, default=str))
    if job_file(folder).exists():
        before = parse_json(read_bytes(job_file(folder), MAX_CONFIG_BYTES))
        if not isinstance(before, dict) or before.get("config") != plain:
            raise DiscorlError(
                f"{folder} was begun with other settings: choose another --out, or remove it"
            )
    write_job(folder, plain)


def _ended(folder: Path, failed: dict[str, str], done: int, total: int) -> str:
    how = f"failed: {failed[folder.name]}" if folder.name in failed else "finished"
    return f"[{done + len(failed)}/{total}] {folder.name}: {how}"
