"""Learning curves: as pictures and as text."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

from discorl.atomic import write_atomically
from discorl.runs.metrics import Row

BLOCKS = " ▁▂▃▄▅▆▇█"


def main_metric(rows: list[Row]) -> str:
    """What the curve of a run shows: the success rate if there is one, else a mean return."""
    names = ("success", "return", "meta_return")
    return next((name for name in names if any(name in row for row in rows)), "return")


def plot_curve(path: Path, rows: list[Row], title: str, success_name: str) -> None:
    """Draw return or success rate, and the loss, against environment steps."""
    metric = main_metric(rows)
    figure = _new_figure(8, 5)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    _draw(upper, rows, "env_steps", metric, color="#2d6cdf")
    _draw(lower, rows, "env_steps", "loss", color="#888888")
    upper.set(title=title, ylabel=success_name if metric == "success" else "return")
    if metric == "success":
        upper.set_ylim(-0.02, 1.02)
    lower.set(ylabel="loss", xlabel="environment steps")
    _save(figure, path)


def plot_discovery(path: Path, rows: list[Row]) -> None:
    """Returns of the population and on held-out tasks, by meta-step."""
    figure = _new_figure(11, 4.5)
    titles = ("Population, while it is trained", "Fresh agents on held-out tasks")
    for axes, prefix, title in zip(
        figure.subplots(1, 2), ("return/", "held_out/"), titles, strict=True
    ):
        names = sorted({k for row in rows for k in row if k.startswith(prefix)})
        for name in names:
            _draw(axes, rows, "step", name, label=name.removeprefix(prefix), linewidth=1.5)
        axes.set(title=title, xlabel="meta-step", ylabel="mean return")
        axes.grid(alpha=0.3)
        if names:
            axes.legend(fontsize=8)
    _save(figure, path)


def _new_figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure  # imported late: slow, and only needed at the end

    return Figure(figsize=(width, height), layout="constrained")


def _draw(axes: Any, rows: list[Row], x: str, y: str, **style: Any) -> None:
    if points := [(row[x], row[y]) for row in rows if y in row]:
        axes.plot(*zip(*points, strict=True), **style)
    axes.grid(alpha=0.3)


def _save(figure: Any, path: Path) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    write_atomically(path, buffer.getvalue())


def text_curve(rows: list[Row], width: int = 60, height: int = 6) -> str:
    """The curve in block characters, for the terminal."""
    metric = main_metric(rows)
    values = [row[metric] for row in rows if metric in row]
    if not values:
        return ""
    count = min(width, len(values))
    edges = [len(values) * i // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = (0.0, 1.0) if metric == "success" else (min(means), max(means))
    span = (high - low) or 1.0
    levels = [(m - low) / span * height for m in means]
    labels = {height - 1: f"{high:8.2f} ┤", 0: f"{low:8.2f} ┤"}
    lines = []
    for row in range(height - 1, -1, -1):
        cells = (BLOCKS[round(max(0.0, min(1.0, level - row)) * 8)] for level in levels)
        lines.append(labels.get(row, " " * 9 + "│") + "".join(cells))
    return "\n".join(lines)
