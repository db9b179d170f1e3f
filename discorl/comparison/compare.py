"""Comparing runs: scores, curves and chances with intervals, at equal environment steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from os import PathLike
from typing import Literal

import numpy as np
from numpy.random import Generator

from discorl.comparison.curves import Curve, area, common_range, final_score
from discorl.comparison.human import human_scale
from discorl.comparison.records import RunRecord, find_runs, read_run
from discorl.comparison.result import (
    Band,
    Comparison,
    GroupScore,
    Improvement,
    Overall,
    RunScore,
    TaskComparison,
)
from discorl.comparison.seeds import Seeds, group_runs
from discorl.comparison.statistics import (
    Array,
    Estimate,
    aggregate,
    curve_band,
    probability_of_improvement,
)
from discorl.errors import DiscorlError
from discorl.runs.config_file import NoRun

Metric = Literal["auto", "return", "success"]

GRID_POINTS = 200
CURVE_SAMPLES = 2000
"""Bootstrap samples for the bands of curves, where the eye is the judge."""
MAX_RUN_POINTS = 400
"""Points kept from the curve of a single run."""


def compare(
    paths: Sequence[PathLike[str] | str] | PathLike[str] | str,
    metric: Metric = "auto",
    by_settings: bool = True,
    samples: int = 10_000,
) -> Comparison:
    """Compare runs by rule on each task, and over tasks. The same runs give the same numbers.

    ``paths`` are folders of runs, results of ``train``, or folders with runs in them.
    """
    paths = [paths] if isinstance(paths, str | PathLike) else paths
    if not paths:
        raise DiscorlError("name the runs to compare, as in 'discorl compare runs/*'")
    if samples < 100:
        raise DiscorlError(f"bootstrap intervals need at least 100 samples, not {samples}")
    rng = np.random.default_rng(0)
    runs, notes = [], []
    for folder in find_runs(paths):
        try:
            runs.append(read_run(folder))
        except NoRun as e:
            notes.append(f"{e}: left out")
    if not runs:
        raise DiscorlError(
            f"no agent was trained here: {'; '.join(notes)}. Name runs of 'discorl train', or "
            "train agents with the rules and compare those"
        )
    notes += [note for run in runs for note in run.notes]
    groups, left_out = group_runs(runs, by_settings)
    notes += left_out
    order = {label: i for i, label in enumerate(dict.fromkeys(g.label for g in groups))}
    groups.sort(key=lambda g: order[g.label])  # the same order on every task
    tasks = []
    for task in dict.fromkeys(run.task for run in runs):
        here = [g for g in groups if g.task == task]
        tasks.append(_compare_on_task(task, here, metric, samples, rng, notes))
    for task in tasks:
        for g in task.groups:
            if len(g.runs) < 2:
                notes.append(
                    f"{task.task}, {g.label}: one seed; an interval needs two or more, and a "
                    "difference may be down to chance"
                )
    overall, scale = _overall(tasks, samples, rng, notes)
    improvements = _improvements(tasks, samples, rng)
    return Comparison(tasks, overall, scale, improvements, notes, samples)


def _compare_on_task(
    task: str, groups: list[Seeds], metric: str, samples: int, rng: Generator, notes: list[str]
) -> TaskComparison:
    runs = [run for group in groups for run in group.runs]
    if metric == "auto":
        metric = "success" if all(run.logged.has("success") for run in runs) else "return"
    curves = [_curve(run, metric) for run in runs]
    start, budget = common_range(curves)
    shortest = min(runs, key=lambda run: run.logged.env_steps[-1])
    if _end_together(runs):
        start = min(start, budget)
    if start > budget:
        raise DiscorlError(
            f"the runs on {task} have no environment steps in common: {shortest.folder} ends at "
            f"{budget:g}, another starts at {start:g}; leave one of them out"
        )
    longest = max(int(run.logged.env_steps[-1]) for run in runs)
    if longest > budget:
        notes.append(
            f"{task}: runs end at different environment steps, up to {longest:,}; they are "
            f"compared up to {int(budget):,}, where {shortest.folder} ends"
        )
    scores = [_group_score(group, metric, start, budget, samples, rng) for group in groups]
    return TaskComparison(task, metric, start, budget, scores)


def _end_together(runs: Sequence[RunRecord]) -> bool:
    """Whether less than a training step lies between the ends, as if all had one budget."""
    first_end = min(run.logged.env_steps[-1] for run in runs)
    for run in runs:
        copies, length = run.config.get("num_envs"), run.config.get("rollout_length")
        if not isinstance(copies, int) or not isinstance(length, int):
            return False
        if run.logged.env_steps[-1] - copies * length >= first_end:
            return False
    return True


def _curve(run: RunRecord, metric: str) -> Curve:
    env_steps, _, values = run.logged.having(metric)
    if not len(values):
        why = "no episode ended" if metric == "return" else "the task has none"
        raise DiscorlError(f"{run.folder} never logged a {metric} ({why}): leave it out")
    return Curve(env_steps, values)


def _group_score(
    group: Seeds, metric: str, start: float, budget: float, samples: int, rng: Generator
) -> GroupScore:
    runs = [_run_score(run, metric, start, budget) for run in group.runs]
    by_steps = [_curve(run, metric) for run in group.runs]
    # A slow rule would cut off all others if wall-clock had one range for the task.
    by_seconds = [Curve(*np.array([(s, y) for _, s, y in run.points]).T) for run in runs]
    seconds = float(np.median([run.seconds for run in runs]))
    return GroupScore(
        label=group.label,
        rule=group.rule,
        score=aggregate([np.array([run.score for run in runs])], samples, rng),
        area=aggregate([np.array([run.area for run in runs])], samples, rng),
        seconds=seconds,
        steps_per_second=budget / seconds if seconds > 0 else 0.0,
        by_steps=_band(by_steps, rng),
        by_seconds=_band(by_seconds, rng),
        runs=runs,
    )


def _run_score(run: RunRecord, metric: str, start: float, budget: float) -> RunScore:
    curve, logged = _curve(run, metric), run.logged
    stride = -(-len(curve.x) // MAX_RUN_POINTS)
    # From the end, so that the last one always stays.
    kept = (x[::-1][::stride][::-1].tolist() for x in logged.having(metric))
    return RunScore(
        folder=str(run.folder),
        seed=run.seed,
        score=final_score(curve, budget),
        area=area(curve, start, budget),
        seconds=float(np.interp(budget, logged.env_steps, logged.seconds)),
        env_steps=int(logged.env_steps[-1]),
        points=[(int(x), seconds, y) for x, seconds, y in zip(*kept, strict=True)],
    )


def _band(curves: Sequence[Curve], rng: Generator) -> Band:
    """As far as all runs of the group go, which may be beyond where another group ends."""
    start, end = common_range(curves)
    grid = np.linspace(min(start, end), end, GRID_POINTS if end > start else 1)
    stacked = np.stack([curve.at(grid) for curve in curves])
    middle, low, high = curve_band(stacked, CURVE_SAMPLES, rng)
    return Band(_rounded(grid), _rounded(middle), _listed(low), _listed(high))


def _rounded(values: Array) -> list[float]:
    """Six digits are more than anyone sees, and keep the page small."""
    return [float(f"{v:.6g}") for v in values]


def _listed(values: Array | None) -> list[float] | None:
    return None if values is None else _rounded(values)


def _overall(
    tasks: list[TaskComparison], samples: int, rng: Generator, notes: list[str]
) -> tuple[list[Overall], str]:
    """Interquartile mean over runs x tasks, of the tasks that all groups with two or more share."""
    if len(tasks) < 2:
        return [], ""
    count = Counter(g.label for task in tasks for g in task.groups)
    labels = [label for label, times in count.items() if times > 1]
    shared = [t for t in tasks if set(labels) <= {g.label for g in t.groups}]
    if not labels or len(shared) < 2:
        notes.append("no score over all tasks: the rules have fewer than two tasks in common")
        return [], ""
    if left_out := [task.task for task in tasks if task not in shared]:
        notes.append(
            f"left out of the score over all tasks, because not every rule ran on them: "
            f"{', '.join(left_out)}"
        )
    scaled = [_scaled(task) for task in shared]
    overall = [
        Overall(label, aggregate([by_label[label] for by_label, _ in scaled], samples, rng))
        for label in labels
    ]
    scales = (f"{task.task}: {scale}" for task, (_, scale) in zip(shared, scaled, strict=True))
    return overall, "; ".join(scales)


def _scores(group: GroupScore) -> Array:
    return np.array([run.score for run in group.runs])


def _scaled(task: TaskComparison) -> tuple[dict[str, Array], str]:
    """Scores that can be compared with those of another task."""
    scores = {g.label: _scores(g) for g in task.groups}
    if task.metric == "success":
        return scores, "success rate"
    if (normalise := human_scale(task.task)) is not None:
        return {k: np.array([normalise(x) for x in v]) for k, v in scores.items()}, "human = 1"
    pooled = np.concatenate(list(scores.values()))
    low, width = pooled.min(), np.ptp(pooled)
    scaled = {k: (v - low) / width if width else np.full_like(v, 0.5) for k, v in scores.items()}
    return scaled, "worst run = 0, best run = 1"


def _improvements(tasks: list[TaskComparison], samples: int, rng: Generator) -> list[Improvement]:
    """Every pair of groups over the tasks they share, the likely better one first."""
    by_task = {task.task: {g.label: _scores(g) for g in task.groups} for task in tasks}
    labels = list(dict.fromkeys(label for t in by_task.values() for label in t))
    found = []
    for pair in combinations(labels, 2):
        if shared := [name for name, t in by_task.items() if t.keys() >= set(pair)]:
            first, second = ([by_task[name][label] for name in shared] for label in pair)
            chance = probability_of_improvement(first, second, samples, rng)
            better, worse = pair
            if chance.value < 0.5:
                better, worse, chance = worse, better, _turned(chance)
            found.append(Improvement(better, worse, shared, chance))
    return found


def _turned(chance: Estimate) -> Estimate:
    """The chance seen from the other side."""
    if chance.low is None or chance.high is None:
        return Estimate(1 - chance.value)
    return Estimate(1 - chance.value, 1 - chance.high, 1 - chance.low)
