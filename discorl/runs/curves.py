"""Learning curves: as pictures and as text."""

from __future__ import annotations

import io
import math
from array import array
from collections.abc import Callable, Collection, Iterable
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from discorl.atomic import write_atomically
from discorl.runs.metrics import GAP, Row

BLOCKS = " ▁▂▃▄▅▆▇█"
MAIN_METRICS = ("success", "return", "meta_return")
VALIDATION = "validation"
SCORES = {VALIDATION: "the rule", f"{VALIDATION}_average": "its moving average"}
"""How the picture calls the scores of a rule on held-out tasks."""
EVALUATIONS = {"eval/sampled": "evaluated, sampled", "eval/greedy": "evaluated, greedy"}
"""How the picture calls the scores of evaluations."""
MAX_POINTS = 8000
"""Points kept of a line in a picture: some for every pixel of its width."""


def main_metric(names: Collection[str]) -> str:
    """What the curve of a run shows: the success rate if there is one, else a mean return."""
    return next((name for name in MAIN_METRICS if name in names), "return")


def plot_curve(path: Path, rows: Iterable[Row], title: str, success_name: str) -> None:
    """Draw return or success rate, in training and in evaluations, and the loss, against
    environment steps."""
    evaluations = (f"{name}{ending}" for name in EVALUATIONS for ending in ("", "_success"))
    wanted = (*MAIN_METRICS, "loss", *evaluations)
    lines = _lines(rows, "env_steps", lambda name: name in wanted)
    metric = main_metric(lines.keys())
    evaluated = {
        label: line
        for name, label in EVALUATIONS.items()
        if (line := lines.get(f"{name}_success" if metric == "success" else name))
    }
    figure = _new_figure(8, 5)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    _draw(upper, lines.get(metric), color="#2d6cdf", label="in training")
    for (label, line), color in zip(evaluated.items(), ("#d9482b", "#2f9e44"), strict=False):
        _draw(upper, line, color=color, label=label, marker="o", markersize=3)
    if evaluated:
        upper.legend(fontsize=8)
    _draw(lower, lines.get("loss"), color="#888888")
    upper.set(title=title, ylabel=success_name if metric == "success" else "return")
    if metric == "success":
        upper.set_ylim(-0.02, 1.02)
    lower.set(ylabel="loss", xlabel="environment steps")
    _save(figure, path)


def plot_discovery(path: Path, rows: Iterable[Row]) -> None:
    """Returns of the population and on held-out tasks, and scores of the rule, by meta-step."""
    lines = _lines(rows, "step", lambda name: name.startswith(("return/", "held_out/", VALIDATION)))
    titles = {
        "return/": "Population, while it is trained",
        "held_out/": "Fresh agents on held-out tasks",
    }
    scores = [name for name in SCORES if name in lines]
    figure = _new_figure(16 if scores else 11, 4.5)
    left, right, *last = figure.subplots(1, 3 if scores else 2)
    for axes, (prefix, title) in zip((left, right), titles.items(), strict=True):
        names = sorted(name for name in lines if name.startswith(prefix))
        for name in names:
            _draw(axes, lines[name], label=name.removeprefix(prefix), linewidth=1.5)
        axes.set(title=title, xlabel="meta-step", ylabel="mean return")
        axes.grid(alpha=0.3)
        if names:
            axes.legend(fontsize=8)
    for axes in last:
        for name in scores:
            _draw(axes, lines[name], label=SCORES[name], linewidth=1.5, marker="o", markersize=3)
        axes.axhline(1.0, color="#888888", linestyle="--", label="actor-critic")
        axes.axhline(0.0, color="#888888", linestyle=":", label="untrained")
        axes.set(title="Validation: mean over held-out tasks", xlabel="meta-step", ylabel="score")
        axes.legend(fontsize=8)
    _save(figure, path)


class _Line:
    """A line of any length, with as many of its points as can be told apart."""

    def __init__(self) -> None:
        self._x, self._y = array("d"), array("d")
        self._new_x, self._new_y = array("d"), array("d")
        self._stretch = 2  # points of which two are kept
        self._gaps = 0

    def add(self, x: float, y: float, gaps: int) -> None:
        """Add a point; ``gaps`` were passed so far, and the line breaks at a new one."""
        if gaps != self._gaps and (self._x or self._new_x):
            self._append(x, math.nan)
        self._gaps = gaps
        self._append(x, y)

    def points(self) -> tuple[array[float], array[float]]:
        """Where it goes."""
        return self._x + self._new_x, self._y + self._new_y

    def _append(self, x: float, y: float) -> None:
        self._new_x.append(x)
        self._new_y.append(y)
        if len(self._new_x) < self._stretch:
            return
        x_kept, y_kept = _extremes(self._new_x, self._new_y, self._stretch)
        self._x += x_kept
        self._y += y_kept
        self._new_x, self._new_y = array("d"), array("d")
        if len(self._x) == 2 * MAX_POINTS:
            self._x, self._y = _extremes(self._x, self._y, 4)
            self._stretch *= 2


def _extremes(x: array[float], y: array[float], stretch: int) -> tuple[array[float], array[float]]:
    """Of every so many points the lowest and the highest, so that no peak is lost.

    A break counts as both.
    """
    if stretch == 2:
        return x, y
    points = [np.array(values).reshape(-1, stretch) for values in (x, y)]
    lowest, highest = points[1].argmin(axis=1), points[1].argmax(axis=1)
    kept = np.sort(np.stack([lowest, highest], axis=1), axis=1)
    x_kept, y_kept = (np.take_along_axis(values, kept, axis=1) for values in points)
    return array("d", x_kept.tobytes()), array("d", y_kept.tobytes())


def _lines(rows: Iterable[Row], x: str, wanted: Callable[[str], bool]) -> dict[str, _Line]:
    """The fields that are wanted, against the field ``x``, in one pass over the rows."""
    lines: dict[str, _Line] = {}
    gaps = 0
    for row in rows:
        gaps += GAP in row
        if x not in row:
            continue
        for name in filter(wanted, row):
            lines.setdefault(name, _Line()).add(row[x], row[name], gaps)
    return lines


def _new_figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure  # imported late: slow, and only needed at the end

    return Figure(figsize=(width, height), layout="constrained")


def _draw(axes: Any, line: _Line | None, **style: Any) -> None:
    if line is not None:
        axes.plot(*line.points(), **style)
    axes.grid(alpha=0.3)


def _save(figure: Any, path: Path) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    write_atomically(path, buffer.getvalue())


def text_curve(rows: Iterable[Row], width: int = 60, height: int = 6) -> str:
    """The curve in block characters, for the terminal."""
    found: dict[str, array[float]] = {}
    for row in rows:
        for name in MAIN_METRICS:
            if name in row:
                found.setdefault(name, array("d")).append(row[name])
    metric = main_metric(found.keys())
    values = found.get(metric)
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


def plot_trials(path: Path, trials: Iterable[tuple[int, float | None, str]]) -> None:
    """Scores of the trials of a search by number, and the best so far."""
    figure = _new_figure(8, 4)
    axes = figure.subplots()
    scored = [(number, score, state) for number, score, state in trials if score is not None]
    for state, label, style in (("complete", "whole", "o"), ("pruned", "stopped early", "x")):
        points = [(number, score) for number, score, s in scored if s == state]
        if points:
            axes.plot(*zip(*points, strict=True), style, label=label)
    whole = [(number, score) for number, score, state in scored if state == "complete"]
    if whole:
        best = list(accumulate((score for _, score in whole), max))
        axes.step([n for n, _ in whole], best, where="post", color="#888888", label="best so far")
        axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    axes.set(title="Trials", xlabel="trial", ylabel="mean return at the end")
    _save(figure, path)
