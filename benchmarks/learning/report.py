"""Tables and plots of the runs that are there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.learning.run import RUNS
from benchmarks.learning.tasks import ALGORITHMS, PPO, RULES, SUITES, TASKS, LearningTask
from discorl.atomic import write_atomically
from discorl.comparison.curves import Curve, area, common_range, final_score
from discorl.comparison.statistics import (
    Estimate,
    aggregate,
    curve_band,
    mean,
    probability_of_improvement,
)

SAMPLES = 10_000
GRID_POINTS = 200
STYLES = {
    "disco103": ("Disco103", "#0072b2"),
    "disco-mini": ("disco-mini", "#56b4e9"),
    "cmpo": ("cmpo", "#009e73"),
    "actor-critic": ("actor-critic", "#d55e00"),
    "ppo": ("PPO (SB3)", "#5a5a5a"),
}
"""Titles, and colours that colour-blind readers can tell apart."""
TITLES = {name: title for name, (title, _) in STYLES.items()}
Found = dict[str, dict[str, "Group"]]
"""Groups by task and algorithm."""


@dataclass(frozen=True)
class Group:
    """The runs of one algorithm on one task."""

    runs: list[dict[str, Any]]
    curves: list[Curve]
    finals: np.ndarray
    areas: np.ndarray
    final: Estimate
    area: Estimate


def write_report(folder: Path = RUNS.parent) -> str:
    """Write results.md, and a figure for each suite, into ``folder``; returns the text."""
    rng = np.random.default_rng(0)
    lines = [HEAD]
    for suite, tasks in SUITES.items():
        groups = {task.name: read_groups(task, folder / "runs", rng) for task in tasks}
        found = {name: of_task for name, of_task in groups.items() if "disco103" in of_task}
        if found:
            plot(found, folder / f"curves-{suite}.png")
            lines += section(suite, found, rng)
    text = "\n".join(lines).rstrip() + "\n"
    write_atomically(folder / "results.md", text.encode())
    return text


HEAD = """\
# Learning at equal environment steps

Written by `python -m benchmarks.learning report` from the files in `runs/`. Mean over seeds [95 %
bootstrap interval], which for three seeds is little more than their range. *Final* is the mean
return over the last tenth of the steps, *area* that over all. A point of a curve is the mean
return of the episodes that ended in the steps before it, 50 training steps of ours, while
learning; PPO's are measured over as many environment steps as Disco103's.
"""


def read_groups(task: LearningTask, folder: Path, rng: np.random.Generator) -> dict[str, Group]:
    """What was run on a task, scored over the environment steps that all runs have in common."""
    runs = {}
    for algorithm in ALGORITHMS:
        paths = sorted(folder.glob(f"{task.name}-{algorithm}-*.json"))
        if paths:
            runs[algorithm] = [json.loads(path.read_text()) for path in paths]
    curves = {name: [curve_of(run) for run in these] for name, these in runs.items()}
    if not curves:
        return {}
    start, end = common_range([c for these in curves.values() for c in these])
    groups = {}
    for name, these in curves.items():
        finals = np.array([final_score(c, end) for c in these])
        areas = np.array([area(c, start, end) for c in these])
        groups[name] = Group(
            runs[name],
            these,
            finals,
            areas,
            aggregate([finals], SAMPLES, rng, mean),
            aggregate([areas], SAMPLES, rng, mean),
        )
    return groups


def curve_of(run: dict[str, Any]) -> Curve:
    """A run's curve as arrays."""
    x, y = np.array(run["curve"], dtype=np.float64).T
    return Curve(x, y)


def section(suite: str, found: Found, rng: np.random.Generator) -> list[str]:
    """All about one suite."""
    lines = [
        f"## {suite.capitalize()}",
        "",
        f"![Learning curves](curves-{suite}.png)",
        "",
        *table(found),
        "",
        *together(found, rng),
        *verdicts(found, rng),
        "",
        "The commands are those of the first seed; others differ in `--seed` alone.",
        "",
    ]
    for name, groups in found.items():
        task = TASKS[name]
        lines += [f"### {task.title}", "", "```"]
        lines += [groups[rule].runs[0]["command"] for rule in RULES if rule in groups]
        lines += ["```", ""]
        if PPO in groups:
            given = ", ".join(f"{k}={v}" for k, v in groups[PPO].runs[0]["settings"].items())
            lines += [f"PPO ({task.ppo_from}): {given}", ""]
    return lines


def together(found: Found, rng: np.random.Generator) -> list[str]:
    """Interquartile means over the tasks that every algorithm has run, if there are two or more."""
    entered = [name for name in ALGORITHMS if any(name in groups for groups in found.values())]
    complete = [groups for groups in found.values() if all(name in groups for name in entered)]
    if len(complete) < 2:
        return []
    lines = [
        f"Together, over the {len(complete)} tasks that all have run: interquartile means [95 % "
        "stratified bootstrap interval]. On each task 0 is where curves begin, and 1 the best "
        "mean of all. The last column is the chance that a run of Disco103 has the higher final.",
        "",
        "| algorithm | final | area | Disco103 is better |",
        "|---|---|---|---|",
    ]
    ours = [groups["disco103"].finals for groups in complete]
    for name in entered:
        cells = [TITLES[name]]
        for which in ("finals", "areas"):
            scores = [normalised(groups, name, which) for groups in complete]
            cells.append(show(aggregate(scores, SAMPLES, rng)))
        theirs = [groups[name].finals for groups in complete]
        better = probability_of_improvement(ours, theirs, 1000, rng)
        cells.append("" if name == "disco103" else show(better))
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def normalised(groups: dict[str, Group], name: str, which: str) -> np.ndarray:
    """Scores of an algorithm on a task, from 0, where curves begin, to 1, the best mean."""
    start = np.mean([curve.y[0] for group in groups.values() for curve in group.curves])
    best = max(getattr(group, which).mean() for group in groups.values())
    scores = getattr(groups[name], which)
    return (scores - start) / (best - start) if best > start else np.zeros_like(scores)


def table(found: Found) -> list[str]:
    """Final score and area, with the seconds that a run took."""
    head = ["task", "steps", "algorithm", "seeds", "final", "area", "final of each seed", "s/run"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for name, groups in found.items():
        for algorithm, group in groups.items():
            cells = [
                TASKS[name].title,
                f"{TASKS[name].env_steps:,}",
                TITLES[algorithm],
                str(len(group.runs)),
                show(group.final),
                show(group.area),
                ", ".join(f"{x:.4g}" for x in group.finals),
                f"{np.mean([run['seconds'] for run in group.runs]):.0f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def verdicts(found: Found, rng: np.random.Generator) -> list[str]:
    """Disco103 against each of the others, task by task."""
    lines = [
        "Chance that a run of Disco103 beats one of the other, by final score and by area:",
        "",
        "| task | actor-critic, final | actor-critic, area | PPO, final | PPO, area |",
        "|---|---|---|---|---|",
    ]
    for name, groups in found.items():
        ours, cells = groups["disco103"], [TASKS[name].title]
        for other in ("actor-critic", PPO):
            for which in ("finals", "areas"):
                if other not in groups:
                    cells.append("-")
                    continue
                pair = ([getattr(ours, which)], [getattr(groups[other], which)])
                cells.append(f"{probability_of_improvement(*pair, 1000, rng).value:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    solved = [
        f"{TITLES[name]} seed {run['seed']}: {run['evaluation']:.1f}"
        for groups in found.values()
        for name, group in groups.items()
        for run in group.runs
        if "evaluation" in run
    ]
    if solved:
        lines += ["", "CartPole-v1, 100 episodes of the trained agent: " + "; ".join(solved) + "."]
    return lines


def show(estimate: Estimate) -> str:
    """An estimate with its interval."""
    text = f"{estimate.value:.4g}"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{estimate.low:.4g}, {estimate.high:.4g}]"


def plot(found: Found, path: Path) -> None:
    """A panel for each task: the mean of the seeds, and each seed."""
    columns = 2 if len(found) > 1 else 1
    rows = max(1, -(-len(found) // columns))
    figure = Figure(figsize=(5.5 * columns, 3.2 * rows), layout="constrained")
    axes = np.atleast_1d(figure.subplots(rows, columns)).ravel()
    rng = np.random.default_rng(0)
    for axis, (name, groups) in zip(axes, found.items(), strict=False):
        for algorithm, group in groups.items():
            start, end = common_range(group.curves)
            grid = np.linspace(start, end, GRID_POINTS)
            curves = np.stack([c.at(grid) for c in group.curves])
            colour = STYLES[algorithm][1]
            middle, _, _ = curve_band(curves, 100, rng)
            axis.plot(grid, middle, color=colour, label=TITLES[algorithm])
            for curve in curves:
                axis.plot(grid, curve, color=colour, alpha=0.3, linewidth=0.8)
        axis.set(title=TASKS[name].title, xlabel="environment steps", ylabel="return")
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    for axis in axes[len(found) :]:
        axis.remove()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
