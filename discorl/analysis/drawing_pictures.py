"""Figures that show what agents saw."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import Any

import numpy as np

from discorl.analysis.results import Film, Maps, Panel

SMALL_BOARD = 32
"""Cells on a side up to which single cells are marked; larger pictures shine through."""


def draw_film(canvas: Any, figure: Film, draw_lines: Callable[[Any], None]) -> None:
    """Frames in a row above curves; ``draw_lines`` draws those on axes."""
    count = len(figure.frames)
    grid = canvas.add_gridspec(2, count, height_ratios=[1, 2.6])
    for i, (step, frame) in enumerate(zip(figure.steps, figure.frames)):
        axes = _bare(canvas.add_subplot(grid[0, i]))
        axes.imshow(_decoded(frame), interpolation="nearest")
        axes.set_title(str(step), fontsize=9, pad=2)
    axes = canvas.add_subplot(grid[1, :])
    draw_lines(axes)
    for i, (step, reward) in enumerate(figure.rewards):
        axes.axvline(step, color="#7a7a7a", linewidth=1, linestyle=(0, (1, 2)), zorder=0)
        if i < count:  # more would overlap
            axes.annotate(f"{reward:+.3g}", (step, 1), xycoords=("data", "axes fraction"),
                          xytext=(-2, -2), textcoords="offset points", ha="right", va="top",
                          fontsize=9, color="#4a4a4a")  # fmt: skip
    canvas.suptitle(figure.title, fontsize=11)


def draw_maps(canvas: Any, figure: Maps) -> None:
    """A row for each frame: the frame, then its maps, and one scale for all."""
    cells = canvas.subplots(len(figure.rows), 1 + len(figure.columns), squeeze=False)
    drawn = None
    for name, frame, axes, panels in zip(figure.rows, figure.frames, cells, figure.panels):
        picture = _decoded(frame)
        _bare(axes[0]).imshow(picture, interpolation="nearest")
        axes[0].set_ylabel(name, fontsize=9)
        for on, panel in zip(axes[1:], panels):
            drawn = _draw_panel(_bare(on), panel, picture)
    for axes, column in zip(cells[0], ["seen", *figure.columns]):
        axes.set_title(column, fontsize=10, pad=3)
    bar = canvas.colorbar(drawn, ax=cells, orientation="horizontal", shrink=0.7, aspect=30)
    bar.set_label(figure.unit, fontsize=9)
    bar.ax.tick_params(labelsize=8)
    canvas.suptitle(figure.title, fontsize=11)


def _draw_panel(axes: Any, panel: Panel, picture: np.ndarray) -> Any:
    heat = np.array(panel.heat)
    height, width = heat.shape
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    is_board = max(height, width) <= SMALL_BOARD
    if not is_board:
        grey = picture.mean(-1)
        axes.imshow(grey, cmap="gray", extent=extent, interpolation="nearest")
    drawn = axes.imshow(
        *(heat,), cmap="cividis", vmin=0, vmax=1, extent=extent, interpolation="nearest",
        alpha=1.0 if is_board else 0.75,
    )  # fmt: skip
    if panel.marks and is_board:
        rows, columns = zip(*panel.marks)
        axes.scatter(columns, rows, s=7, color="white", edgecolors="#2a2a2a", linewidths=0.5)
    return drawn


def _bare(axes: Any) -> Any:
    axes.set_xticks([])
    axes.set_yticks([])
    return axes


def _decoded(png: str) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB"))
