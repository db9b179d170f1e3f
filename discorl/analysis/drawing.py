"""Figures as PNG and SVG files, in the colours of the HTML pages."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from discorl.analysis.drawing_pictures import draw_film, draw_maps
from discorl.analysis.results import Curves, Dots, Figure, Film, HeatMap, Maps
from discorl.atomic import write_atomically
from discorl.comparison.statistics import Estimate

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#b8578c", "#b97f00", "#2a2a2a", "#3fa0dc", "#7a7a7a"]
"""Okabe and Ito's, which people with colour-blindness can tell apart."""
DASHES = ["-", (0, (5, 3)), (0, (1, 3)), (0, (6, 2, 1, 2))]
"""Tell lines apart in grey, too."""
LEGEND_ROW = 0.22
"""Inches that a row of names takes under a plot; inside it they would hide what they name."""
ROOM = 0.14
"""Inches between the dots of a row, so that no group reaches into the next row."""
WIDTH, NARROW = 5.0, 4.2
"""Inches: narrow, so that the text is legible on a phone. The page shows some figures as pictures,
whose text shrinks with them."""


def save_figure(folder: Path, figure: Figure) -> list[str]:
    """Draw a figure; returns the names of its files."""
    from matplotlib import rc_context  # imported late: slow
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=_size(figure), layout="constrained")
    if isinstance(figure, Film):
        draw_film(canvas, figure, lambda axes: _draw_curves(axes, figure))
    elif isinstance(figure, Maps):
        draw_maps(canvas, figure)
    else:
        axes = canvas.subplots()
        if isinstance(figure, Curves):
            _draw_curves(axes, figure)
        elif isinstance(figure, Dots):
            _draw_dots(axes, figure)
        else:
            _draw_heat_map(canvas, axes, figure)
        axes.set_title(figure.title, fontsize=11)
    names = [f"{figure.name}.{ending}" for ending in ("png", "svg")]
    with rc_context({"svg.hashsalt": "discorl"}):  # equal numbers, equal files
        for name in names:
            buffer = io.BytesIO()
            ending = name[-3:]
            about = {"Date": None} if ending == "svg" else {"Software": None}
            canvas.savefig(buffer, format=ending, dpi=160, metadata=about)
            write_atomically(folder / name, buffer.getvalue())
    return names


def _size(figure: Figure) -> tuple[float, float]:
    """Inches."""
    if isinstance(figure, Dots):
        labels, groups = ({getattr(row, k) for row in figure.rows} for k in ("label", "group"))
        return WIDTH, 1.0 + (0.18 + ROOM * len(groups)) * len(labels) + _legend(len(groups))
    if isinstance(figure, Curves):
        return WIDTH, 3.2 + _legend(len(figure.lines))
    if isinstance(figure, Maps):
        return NARROW, 1.2 + len(figure.rows) * NARROW / (1 + len(figure.columns))
    if isinstance(figure, Film):
        return NARROW, 4.0 + _legend(len(figure.lines))
    return NARROW, 3.4


def _legend(count: int) -> float:
    """Height of the names of so many lines or groups, in two columns; one needs none."""
    return LEGEND_ROW * -(-count // 2) if count > 1 else 0.0


def _draw_curves(axes: Any, figure: Curves | Film) -> None:
    for i, line in enumerate(figure.lines):
        colour, b = COLOURS[i % len(COLOURS)], line.band
        dash: Any = DASHES[(i + i // len(COLOURS)) % len(DASHES)]
        marker = "o" if len(b.x) == 1 else None
        axes.plot(b.x, b.middle, color=colour, linestyle=dash, label=line.label, marker=marker)
        if b.low is not None and b.high is not None:
            axes.fill_between(b.x, b.low, b.high, color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel=figure.x_label, ylabel=figure.y_label)
    axes.grid(alpha=0.3)
    if len(figure.lines) > 1:
        axes.figure.legend(loc="outside lower center", ncols=2, fontsize=8)


def _draw_dots(axes: Any, figure: Dots) -> None:
    groups = list(dict.fromkeys(row.group for row in figure.rows))
    labels = list(dict.fromkeys(row.label for row in figure.rows))
    for n, group in enumerate(groups):
        rows = [row for row in figure.rows if row.group == group]
        found = [row.estimate for row in rows]
        lows, highs = ([_end(e, end) for e in found] for end in ("low", "high"))
        offset = ROOM / (0.18 + ROOM * len(groups)) * (n - (len(groups) - 1) / 2)
        at = [labels.index(row.label) + offset for row in rows]
        axes.hlines(at, lows, highs, color=COLOURS[n], linewidth=4, alpha=0.35)
        axes.plot(
            [e.value for e in found], at, "osD^"[n % 4], color=COLOURS[n], label=group, markersize=5
        )
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel(figure.x_label)
    axes.grid(alpha=0.3, axis="x")
    if len(groups) > 1:
        axes.figure.legend(loc="outside lower center", ncols=2, fontsize=8)


def _end(estimate: Estimate, name: str) -> float:
    end = getattr(estimate, name)
    return estimate.value if end is None else end


def _draw_heat_map(canvas: Any, axes: Any, figure: HeatMap) -> None:
    values = np.array([[np.nan if v is None else v for v in row] for row in figure.values])
    top = float(np.nanmax(np.abs(values))) or 1.0
    is_signed = bool(np.nanmin(values) < 0)
    style = {"cmap": "PuOr", "vmin": -top, "vmax": top} if is_signed else {"cmap": "cividis"}
    drawn = axes.pcolormesh(figure.x_edges, figure.y_edges, values, **style)
    axes.set(xlabel=figure.x_label, ylabel=figure.y_label, facecolor="#e4e4e4")
    canvas.colorbar(drawn, ax=axes, label=figure.unit)
