"""What analyses have in common: numbers over agents with intervals, and figures made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from discorl.comparison.result import Band
from discorl.comparison.statistics import Array, Estimate, aggregate, curve_band, mean
from discorl.errors import DiscorlError

SAMPLES = 2000
"""Bootstrap samples of each interval. Agents are drawn again, not the steps of one agent."""


class NotApplicable(DiscorlError):  # noqa: N818 - reads as a sentence where it is caught
    """The rule or the task lacks what an analysis is about."""


@dataclass(frozen=True)
class Line:
    """A curve with its interval."""

    label: str
    band: Band


@dataclass(frozen=True)
class Curves:
    """Lines against a common axis."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: list[Line]
    kind: str = "curves"


@dataclass(frozen=True)
class Row:
    """One number of a plot of dots."""

    label: str
    group: str
    estimate: Estimate


@dataclass(frozen=True)
class Dots:
    """Numbers side by side, a row for each, coloured by group."""

    name: str
    title: str
    x_label: str
    rows: list[Row]
    kind: str = "dots"


@dataclass(frozen=True)
class HeatMap:
    """A number for each cell of a grid; None where there are no data."""

    name: str
    title: str
    x_label: str
    y_label: str
    unit: str
    x_edges: list[float]
    y_edges: list[float]
    values: list[list[float | None]]
    """A row for each step of y, the lowest first."""
    kind: str = "heat_map"


@dataclass(frozen=True)
class Film:
    """Frames of an episode with curves under them."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: list[Line]
    steps: list[int]
    """Where on the axis of the curves each frame was seen."""
    frames: list[str]
    """PNG files in base64."""
    rewards: list[tuple[int, float]]
    """Steps whose action was rewarded, and by how much."""
    kind: str = "film"


@dataclass(frozen=True)
class Panel:
    """A map over a picture."""

    heat: list[list[float]]
    """Rows from the top; from 0 to 1."""
    marks: list[tuple[int, int]]
    """Cells, as row and column, where a board has something."""


@dataclass(frozen=True)
class Maps:
    """Pictures, a row for each, and beside each its maps."""

    name: str
    title: str
    unit: str
    columns: list[str]
    rows: list[str]
    frames: list[str]
    """PNG files in base64, one in each row."""
    panels: list[list[Panel]]
    """Of each row, a map for each column."""
    kind: str = "maps"


Figure = Curves | Dots | HeatMap | Film | Maps


class Result(Protocol):
    """What an analysis returns: a dataclass of numbers."""

    def findings(self) -> list[str]:
        """What the numbers say, a sentence each."""
        ...

    def figures(self) -> list[Figure]:
        """The same as figures."""
        ...


def band(x: Sequence[float], by_agent: Array) -> Band:
    """Mean over agents [agents, points] with its interval: of four or more, interquartile."""
    middle, low, high = curve_band(by_agent, SAMPLES, np.random.default_rng(0))
    return Band(
        [float(v) for v in x], _plain(middle), *(s if s is None else _plain(s) for s in (low, high))
    )


def estimate(by_agent: Sequence[float] | Array) -> Estimate:
    """Mean over agents, with its interval."""
    return aggregate([np.asarray(by_agent, float)], SAMPLES, np.random.default_rng(0), mean)


def shown(x: Estimate, digits: int = 3) -> str:
    """An estimate in a sentence."""
    value = f"{x.value:.{digits}g}"
    if x.low is None or x.high is None:
        return f"{value} (one agent)"
    return f"{value} ({x.low:.{digits}g} to {x.high:.{digits}g})"


def _plain(values: Array) -> list[float]:
    return [float(f"{v:.6g}") for v in values]
