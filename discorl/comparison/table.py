"""A comparison in the terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from discorl.comparison.result import Comparison, TaskComparison
from discorl.comparison.statistics import Estimate
from discorl.runs.terminal import cell, say


def print_comparison(comparison: Comparison, console: Console) -> None:
    """A table for each task, then what holds over all of them, then what to beware of."""
    for task in comparison.tasks:
        console.print(_task_table(task), "")
    if comparison.overall:
        table = _table("All tasks", "rule", "mean score")
        for overall in comparison.overall:
            table.add_row(cell(overall.label), _estimate(overall.score))
        console.print(table)
        say(console, f"On these scales: {comparison.overall_scale}.", "")
    if comparison.improvements:
        table = _table("Probability of improvement", "rule", "over", "tasks", "chance")
        for pair in comparison.improvements:
            names = (cell(pair.better), cell(pair.worse), str(len(pair.tasks)))
            table.add_row(*names, _estimate(pair.chance))
        console.print(table, "")
    for note in comparison.notes:
        say(console, f"Note: {note}")


def _task_table(task: TaskComparison) -> Table:
    metric = "success rate" if task.metric == "success" else "return"
    title = f"{task.task}: {metric} up to {int(task.budget):,} environment steps"
    table = _table(title, "rule", "seeds", "final score", "area", "time")
    for group in task.groups:
        table.add_row(
            cell(group.label),
            str(len(group.runs)),
            _estimate(group.score),
            _estimate(group.area),
            _duration(group.seconds),
        )
    return table


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(
        title=cell(title),
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    table.add_column(first, overflow="fold")
    for name in others:
        number = name != "over"
        table.add_column(
            name, justify="right" if number else "left", no_wrap=number, overflow="fold"
        )
    return table


def _estimate(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{_number(estimate.value)} (one seed)"
    return f"{_number(estimate.value)} [{_number(estimate.low)}, {_number(estimate.high)}]"


def _number(value: float) -> str:
    size = abs(value)
    return f"{value:.0f}" if size >= 1000 else f"{value:.1f}" if size >= 100 else f"{value:.3f}"


def _duration(seconds: float) -> str:
    for name, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {name}"
    return f"{seconds:.1f} s"
