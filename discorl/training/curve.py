"""Learning curves: as a picture and as text."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

from discorl.atomic import write_atomically

BLOCKS = " ▁▂▃▄▅▆▇█"


def main_metric(rows: list[dict[str, Any]]) -> str:
    """What the curve of a run shows: the success rate if there is one, else the return."""
    return "success" if any("success" in row for row in rows) else "return"


def plot_curve(path: Path, rows: list[dict[str, Any]], title: str, success_name: str) -> None:
    """Draw return or success rate, and the loss, against environment steps."""
    from matplotlib.figure import Figure  # imported late: slow, and only needed at the end

    metric = main_metric(rows)
    figure = Figure(figsize=(8, 5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    for axis, name in ((upper, metric), (lower, "loss")):
        points = [(row["env_steps"], row[name]) for row in rows if name in row]
        if points:
            axis.plot(*zip(*points, strict=True), color="#2d6cdf" if axis is upper else "#888888")
        axis.grid(alpha=0.3)
    upper.set_title(title)
    upper.set_ylabel(success_name if metric == "success" else "return")
    if metric == "success":
        upper.set_ylim(-0.02, 1.02)
    lower.set_ylabel("loss")
    lower.set_xlabel("environment steps")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    write_atomically(path, buffer.getvalue())


def text_curve(rows: list[dict[str, Any]], width: int = 60, height: int = 6) -> str:
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
    lines = []
    for row in range(height - 1, -1, -1):
        label = (
            f"{high:8.2f} ┤"
            if row == height - 1
            else f"{low:8.2f} ┤"
            if row == 0
            else " " * 9 + "│"
        )
        cells = (BLOCKS[round(max(0.0, min(1.0, level - row)) * 8)] for level in levels)
        lines.append(label + "".join(cells))
    return "\n".join(lines)
