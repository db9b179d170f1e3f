"""How our time and memory grow with the size of the work."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib

from benchmarks.measure import busy_share
from benchmarks.workers import OURS, Worker

matplotlib.use("agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

TINY = {"learn": {"num_actions": 2, "batch": 2, "length": 4}, "act": {"num_envs": 1}}
"""Done first, so that what the libraries allocate once is not counted."""


@dataclass(frozen=True)
class Sweep:
    """One size that is varied, all others as in the training step."""

    title: str
    work: str
    option: str
    values: tuple[int, ...]


SWEEPS = (
    Sweep("batch", "learn", "batch", (16, 32, 64, 128, 256)),
    Sweep("actions", "learn", "num_actions", (2, 4, 8, 16, 32)),
    Sweep("unroll length", "learn", "length", (8, 16, 32, 64, 128)),
    Sweep("environments (acting)", "act", "num_envs", (2, 8, 32, 128, 512, 2048)),
)


@dataclass(frozen=True)
class Point:
    """Cost at one size."""

    value: int
    seconds: float
    num_bytes: int


def measure_scaling(settings: dict[str, Any], folder: Path, stem: str, quick: bool) -> None:
    """Measure all sweeps; write a plot, the figures, and the exponents that fit them."""
    settings = settings | {"busy": busy_share()}
    curves: dict[str, list[Point]] = {}
    for sweep in SWEEPS:
        values = sweep.values[:3] if quick else sweep.values
        curves[sweep.title] = []
        for value in values:
            repeats = 1 if quick else 5
            point = measure_point(sweep, value, settings["threads"], repeats, settings["clock"])
            curves[sweep.title].append(point)
            megabytes = point.num_bytes / 2**20
            print(
                f"{sweep.title} {value}: {1e3 * point.seconds:.1f} ms, {megabytes:.1f} MiB",
                flush=True,
            )
    exponents = {title: _exponents(points) for title, points in curves.items()}
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        **settings,
        "points": {title: [asdict(p) for p in points] for title, points in curves.items()},
        "exponents": exponents,
    }
    (folder / f"{stem}.json").write_text(json.dumps(content, indent=1) + "\n")
    plot(curves, exponents, folder / f"{stem}.png")
    print(f"written to {folder / stem}.png and .json")


def measure_point(sweep: Sweep, value: int, threads: int, repeats: int, clock: str) -> Point:
    """In a process of its own, so that the peak of memory is that of this size."""
    with Worker(OURS, threads) as worker:
        worker.ask(sweep.work, TINY[sweep.work], repeats=0)
        reply = worker.ask(sweep.work, {sweep.option: value}, repeats)
    grown = max(reply["peak_bytes"] - reply["rest_bytes"], 1)
    return Point(value, statistics.median(reply[clock]), grown)


def _exponents(points: list[Point]) -> dict[str, float]:
    """Over all sizes, and between the last two, where fixed costs weigh least."""
    sizes = [p.value for p in points]
    out = {}
    for name in ("seconds", "num_bytes"):
        costs = [getattr(p, name) for p in points]
        out[name] = fitted_exponent(sizes, costs)
        out[f"{name}_at_the_end"] = fitted_exponent(sizes[-2:], costs[-2:])
    return out


def fitted_exponent(sizes: list[int], costs: list[float]) -> float:
    """The k of cost ~ size^k, by least squares in logarithms."""
    x, y = [math.log(v) for v in sizes], [math.log(v) for v in costs]
    return statistics.linear_regression(x, y).slope


def plot(
    curves: dict[str, list[Point]], exponents: dict[str, dict[str, float]], path: Path
) -> None:
    """Time above, memory below, a column for each sweep."""
    figure, axes = plt.subplots(2, len(curves), figsize=(3.2 * len(curves), 6), squeeze=False)
    rows = (("seconds", "time per step, ms", 1e-3), ("num_bytes", "memory per step, MiB", 2**20))
    for column, (title, points) in enumerate(curves.items()):
        for row, (name, label, unit) in enumerate(rows):
            costs = [getattr(p, name) / unit for p in points]
            sizes = [p.value for p in points]
            ends = exponents[title][name], exponents[title][f"{name}_at_the_end"]
            _panel(axes[row, column], sizes, costs, ends)
            axes[row, column].set_xlabel(title if row else "")
            axes[row, column].set_ylabel("" if column else label)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _panel(
    axis: Axes, sizes: list[int], costs: list[float], exponents: tuple[float, float]
) -> None:
    guide = [costs[-1] * size / sizes[-1] for size in sizes]
    axis.loglog(sizes, guide, "--", color="0.6", label="linear")
    axis.loglog(sizes, costs, "o-", label="measured")
    axis.set_xticks(sizes, [str(s) for s in sizes])
    axis.minorticks_off()
    axis.set_title(f"exponent {exponents[0]:.2f}, at the end {exponents[1]:.2f}", fontsize=9)
    axis.legend(fontsize=8)
