"""``discorl sweep`` and ``discorl tune``: many runs of ``discorl train``."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from discorl.cli.help import asks_for_help
from discorl.cli.parse import parse, value_of
from discorl.cli.train import parse_train, tasks_and_options, without
from discorl.errors import DiscorlError
from discorl.option_marks import Common
from discorl.printable import printable

T = TypeVar("T")
MAX_SEEDS = 10_000


@dataclass(frozen=True)
class SweepArgs:
    """Which runs, and how many at a time."""

    rules: Common[str] = "auto"
    """Rules, separated by commas, each with its own preset, and all with the environment steps of
    the longest."""
    seeds: Common[str] = "0..4"
    """Seeds: a range like 0..4, or a list like 1,2,5."""
    jobs: Common[int] = 1
    """How many runs at a time; they share the processor's cores."""
    out: Common[Path | None] = None
    """Folder for the runs, by default runs/sweep-TASK; the same command continues there."""


@dataclass(frozen=True)
class TuneArgs:
    """How long to search."""

    trials: Common[int] = 30
    """Trials, each a run; the first has the settings that the search begins with."""
    jobs: Common[int] = 1
    """How many trials at a time; they share the processor's cores."""
    out: Common[Path | None] = None
    """Folder for the search, by default runs/tune-TASK-RULE; the same command continues there."""


def sweep_command(args: list[str]) -> int:
    """Train on tasks with rules and seeds, and compare; returns the exit code."""
    own, args = _own(
        SweepArgs(),
        "discorl sweep TASK...",
        "Train an agent for each task, rule and seed, several at a time, and compare them. All "
        "options of 'discorl train' work here, too. What was begun is resumed by the same command.",
        args,
    )
    from discorl.comparison.report import html_report
    from discorl.comparison.table import print_comparison
    from discorl.runs.files import write_text
    from discorl.tuning.sweep import sweep, with_equal_budgets

    tasks, options = tasks_and_options(args)
    tasks = tasks or ["catch"]
    _refuse(options, "--rule", "--rules")
    _refuse(options, "--seed", "--seeds")
    configs = [
        parse_train([task, *options, "--rule", rule, "--seed", str(seed)])
        for task in tasks
        for rule in _list(own.rules, "rules")
        for seed in seeds_of(own.seeds)
    ]
    configs = with_equal_budgets(configs)
    console = Console()
    out = own.out or Path("runs") / f"sweep-{_plain('-'.join(tasks))}"
    result = sweep(configs, out, own.jobs, console)
    if result.finished:
        try:
            comparison = result.compare()
        except DiscorlError as e:
            raise DiscorlError(
                f"{len(result.finished)} runs are finished in {out}, but {e}"
            ) from None
        print_comparison(comparison, console)
        write_text(out / "comparison.html", html_report(comparison))
        print(printable(f"Report: {out / 'comparison.html'}"))
    if result.interrupted:
        print("Stopped; the same command continues")
        return 130
    if result.failed:
        raise DiscorlError(
            f"{len(result.failed)} of {len(configs)} runs failed: {', '.join(result.failed)}; "
            f"what they said is in {out}/*.log, and the same command tries again"
        )
    return 0


def tune_command(args: list[str]) -> int:
    """Search for settings; returns the exit code."""
    own, args = _own(
        TuneArgs(),
        "discorl tune TASK",
        "Search for settings that suit a task and a rule (extra 'tune'). All options of 'discorl "
        "train' say where the search begins. It is resumed by the same command.",
        args,
    )
    from discorl.tuning.tune import print_result, tune

    config = parse_train(args)
    console = Console()
    out = own.out or Path("runs") / f"tune-{_plain(f'{config.task}-{Path(config.rule).stem}')}"
    result = tune(config, out, own.trials, own.jobs, console)
    print_result(result, console)
    if result.interrupted:
        print("Stopped; the same command continues")
        return 130
    return 0


def seeds_of(text: str) -> list[int]:
    """The seeds that ``0..4`` or ``1,2,5`` stand for."""
    found: list[int] = []
    for part in _list(text, "seeds"):
        match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", part)
        if not match:
            raise DiscorlError(f"--seeds are ranges like 0..4 or numbers like 1,2,5, not '{text}'")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 0 <= last - first < MAX_SEEDS:
            raise DiscorlError(f"--seeds {part}: a range goes up, over at most {MAX_SEEDS} seeds")
        found += range(first, last + 1)
    if len(set(found)) < len(found):
        raise DiscorlError(f"--seeds {text}: name each only once")
    return found


def _own(default: T, usage: str, about: str, args: list[str]) -> tuple[T, list[str]]:
    """The options that are not those of ``discorl train``, and the other arguments."""
    own: list[str] = []
    for field in dataclasses.fields(default):  # pyright: ignore[reportArgumentType]
        option = f"--{field.name}"
        if (value := value_of(option, args)) is not None:
            own += [option, value]
            args = without(option, args)
    if asks_for_help(args):
        own += [arg for arg in args if arg.startswith("-h") or arg.startswith("--help")]
    cls: Any = type(default)
    return parse(cls, usage, about, default, own), args


def _list(text: str, what: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or len(set(parts)) < len(parts):
        raise DiscorlError(f"--{what} {text}: name at least one, and each only once")
    return parts


def _refuse(options: list[str], option: str, instead: str) -> None:
    if value_of(option, options) is not None:
        raise DiscorlError(f"{option} is for one run; a sweep takes {instead}")


def _plain(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text)
