"""The curves of a discovery run as a picture."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from discorl.atomic import write_atomically


def plot_discovery(path: Path, rows: list[dict[str, Any]]) -> None:
    """Returns of the population and on held-out tasks, by meta-step."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    for axes, prefix, title in zip(
        figure.subplots(1, 2),
        ("return/", "held_out/"),
        ("Population, while it is trained", "Fresh agents on held-out tasks"),
        strict=True,
    ):
        names = sorted({k for row in rows for k in row if k.startswith(prefix)})
        for name in names:
            points = [(row["step"], row[name]) for row in rows if name in row]
            axes.plot(*zip(*points, strict=True), label=name.removeprefix(prefix), linewidth=1.5)
        axes.set(title=title, xlabel="meta-step", ylabel="mean return")
        axes.grid(alpha=0.3)
        if names:
            axes.legend(fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    write_atomically(path, buffer.getvalue())
