"""Ablations: what each part of a rule is worth, by discovering rules without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from discorl.analysis.questions import HAND_WRITTEN
from discorl.analysis.results import Curves, Dots, Figure, Line, Row, band, estimate, shown
from discorl.analysis.sections import add_section, begun, report
from discorl.analysis.trials import School, hand_written, school_by, teach, untrained
from discorl.analysis.workers import Job, Tick, results, run_to_end, shown_progress
from discorl.bounds import MAX_COUNT, check_between
from discorl.comparison.statistics import Estimate
from discorl.discovery.config import DiscoverConfig
from discorl.discovery.discover import Discovering
from discorl.discovery.judge import Levels
from discorl.discovery.presets import suite
from discorl.discovery.trials import rule_settings
from discorl.rules.built_in import ACTOR_CRITIC
from discorl.rules.disco import DiscoRule
from discorl.rules.store import load_rule
from discorl.runs.metrics import Row as Metrics
from discorl.runs.program import read_metrics
from discorl.runs.progress import RunProgress
from discorl.runs.terminal import cell, say
from discorl.training.rule_choice import disco_rule

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
HELD_OUT = ("catch:10x6", "umbrella:10")
"""Tasks that rules are judged on, and have not seen."""
NUM_UPDATES = 300
"""Of each agent that judges a rule."""
TRIAL = 20
"""The trials of a rule's agents on a task count as so many meta-steps in the progress bar."""
NAME, TASK = "ablations", "discovery"
ABOUT = (
    "Rules are discovered without one of their parts, from several seeds, and judged by fresh "
    "agents on tasks that they have not seen: 0 is untrained, 1 an actor-critic (Fig. 3c of the "
    "paper, whose full rule scored 11.6 on Atari)."
)


@dataclass(frozen=True)
class Level:
    """What scores on a held-out task are measured by: mean returns."""

    task: str
    untrained: float
    spread: float
    """Standard deviation of the returns of untrained agents."""
    actor_critic: float
    cmpo: float


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
    levels: list[Level]
    cmpo: float
    """The score of the hand-written rule."""
    ablated: list[Ablated]

    def findings(self) -> list[str]:
        """The order of the parts, and the paper's."""
        full, *others = self.ablated
        said = [
            f"The full rule scores {shown(full.score)} after {self.steps} meta-steps; the "
            f"hand-written cmpo {self.cmpo:.3g}."
        ]
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


def table(result: Mapping[str, Any]) -> Table:
    """``Ablations`` as they are in analysis.json, as text."""
    names = list(result["ablated"][0]["held_out"])
    made = Table(title=cell(f"Rules after {result['steps']} meta-steps"))
    for name in ("rule", "score", *names, "paper"):
        made.add_column(cell(name))
    for one in result["ablated"]:
        score, *returns = (
            shown(Estimate(**x)) for x in (one["score"], *(one["held_out"][n] for n in names))
        )
        paper = "not measured" if one["paper"] is None else f"{one['paper']}"
        made.add_row(*map(cell, (one["variant"], score, *returns, paper)))
    return made


def _apart(a: Estimate, b: Estimate) -> bool:
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return False
    return a.low > b.high or b.low > a.high


def small_budget(steps: int = STEPS) -> DiscoverConfig:
    """The preset suite with fewer agents, on two kinds of task; judged afterwards."""
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
    workers: int = 1,
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
        "held_out": list(HELD_OUT),
    }
    new = {
        "rule": NAME,
        "lead": f"{seeds} discoveries of each rule, of {config.steps} meta-steps.",
        "title": "What each part of a rule is worth",
        "settings": settings,
        "tasks": [TASK],
        "left_out": [],
    }
    content = begun(out, new)
    if not content["sections"]:
        say(console, f"Discovering {seeds * len(PARTS)} rules, into {out}")
        found = _discovered(config, out, seeds, console, workers)
        if found is None:
            say(console, "Stopped; the same command continues")
            return False
        about = {"name": NAME, "task": TASK, "title": "Ablations", "about": ABOUT}
        add_section(out, content, about, found, [NAME])
    report(out, content, console)
    console.print(table(content["sections"][0]["result"]))
    return True


def _discovered(
    config: DiscoverConfig, out: Path, seeds: int, console: Console, workers: int
) -> Ablations | None:
    """Discover all rules and judge them; None if that was stopped."""
    runs = [  # all parts of a seed before the next: half of it says something
        replace(without(config, variant), seed=seed, out=_place(out, variant, seed))
        for seed in range(seeds)
        for variant in PARTS
    ]
    trials = [
        Job(_judged, (variant, task, [str(_place(out, variant, s)) for s in range(seeds)]))
        for task in HELD_OUT
        for variant in PARTS
    ]
    levels = [Job(_levels, (task, str(_place(out, FULL, 0)))) for task in HELD_OUT]
    total = len(runs) * config.steps + (len(trials) + len(levels)) * TRIAL
    with shown_progress(RunProgress(total, "auto", "", console)) as tick:
        for _, is_done in results([Job(_discover, (run,)) for run in runs], workers, tick):
            if not is_done:
                return None
        judged = {job.args[:2]: found for job, found in results(trials, workers, tick)}
        of_tasks = {job.args[0]: found for job, found in results(levels, workers, tick)}
    return ablations(out, seeds, judged, of_tasks)


def _place(out: Path, variant: str, seed: int) -> Path:
    return out / "discoveries" / variant.replace(" ", "-") / f"seed-{seed}"


def _discover(config: DiscoverConfig, tick: Tick) -> bool:
    return run_to_end(Discovering, config, tick)


def _judged(variant: str, task: str, folders: Sequence[str], tick: Tick) -> list[float]:
    """Mean return of the agents that learn a task by the rule of each discovery."""
    rules = [load_rule(Path(folder) / "rule.npz") for folder in folders]
    school, rule = _school(task, rules[0].rule)
    by_folder = {folder: one.params for folder, one in zip(folders, rules)}
    outcomes = teach(school, rule, by_folder)
    tick(TRIAL)
    return [float(np.mean(outcome.by_agent)) for outcome in outcomes]


def _levels(task: str, folder: str, tick: Tick) -> Level:
    """What scores on a task are measured by; the networks are those of the rule in a folder."""
    school, rule = _school(task, load_rule(Path(folder) / "rule.npz").rule)
    mean, spread = untrained(school, rule)
    written = {one.variant: float(np.mean(one.by_agent)) for one in hand_written(school, rule)}
    tick(TRIAL)
    return Level(task, mean, spread, written[ACTOR_CRITIC], written[HAND_WRITTEN])


def _school(task: str, rule: DiscoRule) -> tuple[School, DiscoRule]:
    settings = rule_settings(task, rule)
    school = replace(school_by(settings), num_updates=NUM_UPDATES)
    return school, disco_rule(school.settings, rule)


def ablations(
    out: Path,
    seeds: int,
    judged: Mapping[tuple[str, str], Sequence[float]],
    of_tasks: Mapping[str, Level],
) -> Ablations:
    """What the discoveries in a folder have found; ``judged`` has returns by variant and task."""
    tasks = list(of_tasks)
    fields = ("untrained", "spread", "actor_critic")
    columns = ([getattr(of_tasks[task], field) for task in tasks] for field in fields)
    levels = Levels(*(torch.tensor(x, dtype=torch.float64) for x in columns), are_known=True)
    found = []
    for variant in PARTS:
        returns = np.array([judged[variant, task] for task in tasks])  # [tasks, seeds]
        scores = [levels.normalised(of_seed) for of_seed in returns.T.tolist()]
        held_out = {task: estimate(x) for task, x in zip(tasks, returns)}
        runs = [read_metrics(_place(out, variant, seed)) for seed in range(seeds)]
        found.append(
            Ablated(
                *(variant, estimate(scores), scores, held_out),
                *(Line(variant, _curve(runs)), PAPER.get(variant)),
            )
        )
    first = read_metrics(_place(out, FULL, 0))
    names = [k.removeprefix("return/") for k in first[-1] if k.startswith("return/")]
    cmpo = levels.normalised([of_tasks[task].cmpo for task in tasks])
    return Ablations(int(first[-1]["step"]), names, list(of_tasks.values()), cmpo, found)


def _curve(runs: Sequence[Sequence[Metrics]]):
    """The mean over the population's tasks, where all runs have a row."""
    by_run = [{int(row["step"]): _population(row) for row in rows} for rows in runs]
    steps = [s for s in by_run[0] if all(np.isfinite(run.get(s, np.nan)) for run in by_run)]
    return band(steps, np.array([[run[s] for s in steps] for run in by_run]))


def _population(row: Metrics) -> float:
    values = [float(v) for k, v in row.items() if k.startswith("return/")]
    return float(np.mean(values)) if values else float("nan")
