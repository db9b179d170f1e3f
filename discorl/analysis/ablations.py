"""Ablations: what each part of a rule is worth, by discovering rules without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from discorl.analysis.results import Curves, Dots, Figure, Line, Row, band, estimate, shown
from discorl.analysis.sections import add_section, begun, report
from discorl.bounds import MAX_COUNT, check_between
from discorl.comparison.statistics import Estimate
from discorl.discovery.config import DiscoverConfig
from discorl.discovery.discover import Discovering
from discorl.discovery.presets import suite
from discorl.errors import DiscorlError
from discorl.runs import distributed
from discorl.runs.checkpoint import CheckpointFolder
from discorl.runs.distributed import Ranks
from discorl.runs.metrics import Row as Metrics
from discorl.runs.program import read_metrics
from discorl.runs.progress import RunProgress
from discorl.runs.run import run
from discorl.runs.terminal import cell, say

FULL = "full"
PARTS = {
    FULL: None,
    "no auxiliary": "auxiliary",
    "no predictions": "predictions",
    "no value": "value",
    "no lifetime": "lifetime",
}
"""What rules lack, as ``--rule.no-PART`` of discovery."""
PAPER = {FULL: 11.6, "no auxiliary": 10.5, "no predictions": 5.0, "no value": 2.9}
"""Interquartile mean of human-normalised scores on Atari (Fig. 3c)."""
STEPS = 200
NAME, TASK = "ablations", "discovery"
ABOUT = (
    "Rules are discovered without one of their parts, from several seeds, and judged by fresh "
    "agents on tasks that they have not seen: 0 is untrained, 1 an actor-critic (Fig. 3c of the "
    "paper, whose full rule scored 11.6 on Atari)."
)


@dataclass(frozen=True)
class Ablated:
    """Rules without one part."""

    variant: str
    score: Estimate
    """Of the last rule on the held-out tasks, where 0 is untrained and 1 an actor-critic."""
    by_seed: list[float]
    held_out: dict[str, Estimate]
    """Mean return of its agents on each held-out task."""
    curve: Line
    """Mean return of the population as the rule is found."""
    paper: float | None


@dataclass(frozen=True)
class Ablations:
    """All parts, at a small budget."""

    steps: int
    """Meta-steps of each discovery."""
    tasks: list[str]
    ablated: list[Ablated]

    def findings(self) -> list[str]:
        """The order of the parts, and the paper's."""
        full, *others = self.ablated
        said = [f"The full rule scores {shown(full.score)} after {self.steps} meta-steps."]
        for one in others:
            paper = "" if one.paper is None else f"; in the paper {one.paper} of {PAPER[FULL]}"
            apart = " (intervals do not meet)" if _apart(one.score, full.score) else ""
            said.append(f"With {one.variant}: {shown(one.score)}{apart}{paper}.")
        return said

    def figures(self) -> list[Figure]:
        """Scores, and returns of the populations on the way."""
        rows = [Row(one.variant, "score", one.score) for one in self.ablated]
        label = "score (0 untrained, 1 actor-critic)"
        lines = [one.curve for one in self.ablated]
        return [
            Dots("scores", "What each part is worth", label, rows),
            Curves(
                "returns", "The population", "meta-steps", "mean return of the population", lines
            ),
        ]

    def table(self) -> Table:
        """As text."""
        names = list(self.ablated[0].held_out)
        table = Table(title=cell(f"Rules after {self.steps} meta-steps"))
        for name in ("rule", "score", *names, "paper"):
            table.add_column(cell(name))
        for one in self.ablated:
            returns = (shown(one.held_out[name]) for name in names)
            paper = "not measured" if one.paper is None else f"{one.paper}"
            table.add_row(*map(cell, (one.variant, shown(one.score), *returns, paper)))
        return table


def _apart(a: Estimate, b: Estimate) -> bool:
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return False
    return a.low > b.high or b.low > a.high


def small_budget(steps: int = STEPS) -> DiscoverConfig:
    """The preset suite with fewer agents, on two kinds of task; judged at the end."""
    return replace(
        suite(),
        tasks=("catch:sampled*8", "mdp:10x4*8"),
        held_out=(),
        steps=steps,
        warm_start=steps // 4,
        lifetimes=(40, 80, 160),
        log_every=max(1, steps // 20),
        snapshot_every=steps,
        checkpoint_minutes=1.0,
        device="cpu",
        progress="none",
    )


def without(config: DiscoverConfig, variant: str) -> DiscoverConfig:
    """The same discovery of a rule that lacks a part."""
    part = PARTS[variant]
    return config if part is None else replace(config, rule=replace(config.rule, **{part: False}))


def analyse_ablations(
    out: Path | None = None,
    seeds: int = 3,
    steps: int | None = None,
    console: Console | None = None,
    config: DiscoverConfig | None = None,
) -> bool:
    """Discover the rules that are missing in ``out``, and report; returns whether all are there."""
    check_between(1, MAX_COUNT, "seeds", seeds)
    console, out = console or Console(), out or Path("analysis") / NAME
    config = config or small_budget(steps or STEPS)
    settings = {
        "ablations": list(PARTS),
        "seeds": seeds,
        "steps": config.steps,
        "tasks": list(config.tasks),
        "held_out": list(config.held_out),
    }
    lead = f"{seeds} discoveries of each rule, of {config.steps} meta-steps."
    title = "What each part of a rule is worth"
    content = begun(
        out,
        {
            "rule": NAME,
            "lead": lead,
            "title": title,
            "settings": settings,
            "tasks": [TASK],
            "left_out": [],
        },
    )
    if not content["sections"]:
        say(console, f"Discovering {seeds * len(PARTS)} rules, into {out}")
        if not _discover_all(config, out, seeds, console):
            say(console, "Stopped; the same command continues")
            return False
        found = ablations(out, seeds)
        about = {"name": NAME, "task": TASK, "title": "Ablations", "about": ABOUT}
        add_section(out, content, about, found, [NAME])
    report(out, content, console)
    console.print(ablations(out, seeds).table())
    return True


def _place(out: Path, variant: str, seed: int) -> Path:
    return out / "discoveries" / variant.replace(" ", "-") / f"seed-{seed}"


def _discover_all(config: DiscoverConfig, out: Path, seeds: int, console: Console) -> bool:
    with (
        distributed.joined("cpu") as ranks,
        RunProgress(config.steps * seeds * len(PARTS), "auto", "", console) as progress,
    ):
        count = 0

        def tick(steps: int = 1) -> None:
            nonlocal count
            count += steps
            progress.update(count, {})

        for seed in range(seeds):  # all parts of a seed before the next: half of it says something
            for variant in PARTS:
                folder = _place(out, variant, seed)
                own = replace(without(config, variant), seed=seed, out=folder)
                if not _discover(own, ranks, tick):
                    return False
    return True


def _discover(config: DiscoverConfig, ranks: Ranks, tick: Callable[[int], None]) -> bool:
    """Discover a rule unless that is done; returns whether it is."""
    folder = Path(str(config.out))
    steps = CheckpointFolder(folder / "checkpoints").steps()
    tick(steps[-1] if steps else 0)
    if steps and steps[-1] >= config.steps:
        return True
    is_begun = (folder / "config.json").exists()
    return not run(_Watched(config, ranks, tick), resume=is_begun).interrupted


class _Watched(Discovering):
    """Discovery that says after each step that it is done."""

    def __init__(self, config: DiscoverConfig, ranks: Ranks, tick: Callable[[int], None]) -> None:
        super().__init__(config, ranks)
        self._tick = tick

    def step(self, folder: Path) -> None:
        super().step(folder)
        self._tick(1)


def ablations(out: Path, seeds: int) -> Ablations:
    """What the discoveries in a folder have found."""
    found = []
    for variant in PARTS:
        runs = [read_metrics(_place(out, variant, seed)) for seed in range(seeds)]
        scores = [_last(rows, "validation") for rows in runs]
        names = [k for k in runs[0][-1] if k.startswith("held_out/")]
        held_out = {
            name.removeprefix("held_out/"): estimate([_last(rows, name) for rows in runs])
            for name in names
        }
        found.append(
            Ablated(
                *(variant, estimate(scores), scores, held_out),
                *(Line(variant, _curve(runs)), PAPER.get(variant)),
            )
        )
    first = read_metrics(_place(out, FULL, 0))
    tasks = [k.removeprefix("return/") for k in first[-1] if k.startswith("return/")]
    return Ablations(int(first[-1]["step"]), tasks, found)


def _last(rows: Sequence[Metrics], name: str) -> float:
    if not rows or name not in rows[-1]:
        raise DiscorlError(
            f"a discovery has no '{name}' at its end, because no episode of a held-out task had "
            "ended: raise --steps"
        )
    return float(rows[-1][name])


def _curve(runs: Sequence[Sequence[Metrics]]):
    """The mean over the population's tasks, where all runs have a row."""
    by_run = [{int(row["step"]): _population(row) for row in rows} for rows in runs]
    steps = [s for s in by_run[0] if all(np.isfinite(run.get(s, np.nan)) for run in by_run)]
    return band(steps, np.array([[run[s] for s in steps] for run in by_run]))


def _population(row: Metrics) -> float:
    values = [float(v) for k, v in row.items() if k.startswith("return/")]
    return float(np.mean(values)) if values else float("nan")
