"""What a comparison of runs holds: everything that the table, the page and the JSON file show."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from discorl import __version__
from discorl.comparison.statistics import Estimate
from discorl.runs.terminal import as_html


@dataclass(frozen=True)
class Band:
    """Interquartile mean over runs along an axis, and its interval where there is one."""

    x: list[float]
    middle: list[float]
    low: list[float] | None
    high: list[float] | None


@dataclass(frozen=True)
class RunScore:
    """One run, scored up to the budget of its task."""

    folder: str
    seed: int
    score: float
    area: float
    seconds: float
    env_steps: int
    """Where the run itself ended, which may be beyond the budget."""
    points: list[tuple[float, float, float]]
    """(environment steps, seconds, metric), of the whole run."""


@dataclass(frozen=True)
class GroupScore:
    """Runs of one rule on one task."""

    label: str
    rule: str
    score: Estimate
    area: Estimate
    seconds: float
    """Median wall-clock to the budget."""
    steps_per_second: float
    by_steps: Band
    """As far as all of its runs go, beyond the budget as well."""
    by_seconds: Band
    runs: list[RunScore]


@dataclass(frozen=True)
class TaskComparison:
    """All groups on one task."""

    task: str
    metric: str
    start: float
    """All curves are known from this environment step on."""
    budget: float
    """Environment steps up to which the runs are compared: the end of the shortest."""
    groups: list[GroupScore]


@dataclass(frozen=True)
class Overall:
    """A rule over all tasks."""

    label: str
    score: Estimate


@dataclass(frozen=True)
class Improvement:
    """Chance that a run of ``better`` scores higher than one of ``worse``, a mean over tasks."""

    better: str
    worse: str
    tasks: list[str]
    chance: Estimate


@dataclass(frozen=True)
class Comparison:
    """Everything that the table, the page and the JSON file show."""

    tasks: list[TaskComparison]
    overall: list[Overall]
    """Over the tasks that the rules share; empty if they are fewer than two."""
    overall_scale: str
    improvements: list[Improvement]
    notes: list[str]
    samples: int
    version: str = __version__

    @property
    def labels(self) -> list[str]:
        """All groups by name, in the order of their first run."""
        return list(dict.fromkeys(g.label for task in self.tasks for g in task.groups))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self) | {"labels": self.labels}

    def __repr__(self) -> str:
        tasks = (
            f"{t.task}: {', '.join(f'{g.label} {g.score.value:.4g}' for g in t.groups)}"
            for t in self.tasks
        )
        runs = "1 run" if self.num_runs == 1 else f"{self.num_runs} runs"
        return f"<Comparison of {runs}, final scores: {'; '.join(tasks)}>"

    @property
    def num_runs(self) -> int:
        """How many runs were compared."""
        return sum(len(g.runs) for task in self.tasks for g in task.groups)

    def _repr_html_(self) -> str:
        from discorl.comparison.table import print_comparison  # which needs this module

        return as_html(partial(print_comparison, self))
