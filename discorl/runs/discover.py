"""Discovering a rule: a population lives, and the rule follows the gradient of its returns."""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from discorl import __version__, tree
from discorl.atomic import write_atomically
from discorl.discovery.group import Group
from discorl.discovery.meta_step import Discovery, StepInfo, init_discovery, meta_step
from discorl.discovery.trial import run_trial
from discorl.errors import DiscorlError
from discorl.rules.disco import DiscoRule
from discorl.rules.store import save_rule
from discorl.runs.checkpoint import CheckpointFolder, restore
from discorl.runs.device import choose_device
from discorl.runs.discover_config import DiscoverConfig, GroupConfig
from discorl.runs.discover_curve import plot_discovery
from discorl.runs.discover_setup import make_group, meta_optimiser, starting_rule
from discorl.runs.discover_stats import PopulationStats
from discorl.runs.files import new_run_folder, write_json
from discorl.runs.memory import keep_freed_memory
from discorl.runs.population_ranks import Ranks, population_ranks
from discorl.runs.progress import RunProgress
from discorl.types import Params


@dataclass(frozen=True)
class DiscoverResult:
    """A finished or interrupted run."""

    folder: Path
    rule: DiscoRule
    params: Params
    metrics: list[dict[str, Any]]
    interrupted: bool


class _Run:
    """What stays the same while a rule is discovered, in one process."""

    def __init__(self, config: DiscoverConfig, folder: Path, ranks: Ranks) -> None:
        self.config = config
        self.folder = folder
        self.ranks = ranks
        self.device = choose_device(config.device)
        self.rule, self.start = starting_rule(config)
        # A process owns whole groups; each has its own random numbers, so that a population does
        # the same however it is spread over processes.
        self.owned = [i for i in range(len(config.groups)) if i % ranks.size == ranks.rank]
        self.groups = [self._group(config.groups[i]) for i in self.owned]
        self.generators = [self._generator(i + 1) for i in self.owned]
        self.optimiser = meta_optimiser(config)
        self.checkpoints = CheckpointFolder(folder / "checkpoints", config.keep_checkpoints)

    def _group(self, group: GroupConfig) -> Group:
        return make_group(self.config, group, self.rule, self.device)

    def _generator(self, stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.config.seed * 1_000_003 + stream)

    def begin(self) -> Discovery:
        params = tree.to(self.start, self.device)
        return init_discovery(self.groups, params, self.optimiser, self.generators)

    def evaluate(self, params: Params, step: int) -> dict[str, float]:
        """Mean return of fresh agents on each held-out task, over the last fifth of a trial."""
        scores = {}
        for i, text in enumerate(self.config.held_out):
            if i % self.ranks.size != self.ranks.rank:
                continue
            given = GroupConfig.parse(text, self.config.net)
            group = self._group(dataclasses.replace(given, num_agents=self.config.eval_agents))
            rng = self._generator(1_000 + 17 * i)  # the same agents and tasks each time
            curve = run_trial(group, params, self.config.eval_updates, rng)
            tail = curve[-max(1, len(curve) // 5) :]
            scores[given.task] = float(tail.nanmean())
        return self.ranks.merge(scores)


def discover(
    config: DiscoverConfig, console: Console | None = None, *, resume: Path | None = None
) -> DiscoverResult:
    """Discover a rule and leave a run folder: config.json, metrics.jsonl, curve.png, rule.npz.

    Rules on the way are saved in snapshots/. Ctrl-C ends the run early; what it has found is kept,
    and ``resume`` goes on from the last checkpoint as if nothing had happened.
    """
    console = console or Console(quiet=config.progress == "none")
    keep_freed_memory()
    with population_ranks(choose_device(config.device)) as ranks:
        leads = ranks.rank == 0
        if ranks.size > len(config.groups):
            raise DiscorlError(
                f"{ranks.size} processes for {len(config.groups)} groups of agents: a process owns "
                "whole groups; start fewer, or split --tasks into more groups"
            )
        folder = resume
        if folder is None:
            made = {"folder": str(new_run_folder(config.out, "discover"))} if leads else {}
            folder = Path(ranks.merge(made)["folder"])
            if leads:
                write_json(folder / "config.json", {"discorl": __version__, "discover": config})
        run = _Run(config, folder, ranks)
        return _loop(run, console if leads else Console(quiet=True), resume is not None)


def _loop(run: _Run, console: Console, resumed: bool) -> DiscoverResult:
    config, leads = run.config, run.ranks.rank == 0
    discovery, stats, done = run.begin(), PopulationStats(config.tasks), 0
    rows: list[dict[str, Any]] = []
    if resumed:
        discovery, stats, done = _restored(run, discovery)
        rows = _rows_until(run.folder / "metrics.jsonl", done, rewrite=leads)
    console.print(f"Discovering into {run.folder}, on {run.device}", highlight=False)
    start, step, interrupted = time.monotonic(), done, False
    with (
        (run.folder / "metrics.jsonl").open("a") as log,
        RunProgress(config.steps, config.progress, "success", console) as progress,
    ):
        try:
            for step in range(done + 1, config.steps + 1):
                discovery, info = meta_step(
                    run.groups, discovery, run.optimiser, run.generators, run.ranks.sum
                )
                stats.observe(run.owned, info)
                _check_alive(run, discovery, info, step)
                last = step == config.steps
                held_out = {}
                if step % config.eval_every == 0 or last:
                    held_out = run.evaluate(discovery.rule_params, step)
                if step % config.log_every == 0 or last or held_out:
                    row = {"step": step, "seconds": round(time.monotonic() - start, 2)}
                    row |= stats.summary(run.ranks)
                    row |= {f"held_out/{task}": score for task, score in held_out.items()}
                    rows.append(row)
                    if leads:
                        log.write(json.dumps(row) + "\n")
                        log.flush()
                        progress.update(step, row)
                if leads and (step % config.snapshot_every == 0 or last):
                    _save(run, discovery, step, run.folder / "snapshots" / f"rule-{step}.npz")
                if step % config.checkpoint_every == 0 or last:
                    _checkpoint(run, discovery, stats, step)
        except KeyboardInterrupt:
            interrupted = True
    if leads:
        _save(run, discovery, step, run.folder / "rule.npz")
        plot_discovery(run.folder / "curve.png", rows)
        said = "Stopped by Ctrl-C" if interrupted else "Done"
        console.print(f"{said}. Rule: {run.folder / 'rule.npz'}", highlight=False)
    return DiscoverResult(run.folder, run.rule, discovery.rule_params, rows, interrupted)


def _check_alive(run: _Run, discovery: Discovery, info: StepInfo, step: int) -> None:
    """Stop when no agent has a usable gradient: the rule has driven all of them apart."""
    if info.num_skipped < info.num_agents:
        return
    if run.ranks.rank == 0:
        _save(run, discovery, step, run.folder / "rule.npz")
    raise DiscorlError(
        f"every agent's meta-gradient was NaN or beyond --meta-optimiser.max-norm at meta-step "
        f"{step}: lower --meta-optimiser.learning-rate or --learning-rate. The last good rule is "
        f"{run.folder / 'rule.npz'}"
    )


def _save(run: _Run, discovery: Discovery, step: int, path: Path) -> None:
    provenance = {
        "discovered_by": f"discorl {__version__}, torch {torch.__version__}",
        "meta_steps": step,
        "seed": run.config.seed,
        "init": run.config.init,
        "tasks": " ".join(run.config.tasks),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_rule(path, run.rule, discovery.rule_params, provenance)


def _checkpoint(run: _Run, discovery: Discovery, stats: PopulationStats, step: int) -> None:
    """Everything that changes, of all processes, in one file: any number of them can go on."""
    generators = [g.get_state() for g in run.generators]
    per_agent = run.optimiser.per_agent
    mine = {
        str(index): {
            "state": discovery.groups[i],
            "adam": discovery.adam[i] if per_agent else None,
            "generator": generators[i],
        }
        for i, index in enumerate(run.owned)
    }
    parts = run.ranks.gather(mine)
    if run.ranks.rank == 0:
        groups = {name: part for of_rank in parts for name, part in of_rank.items()}
        content = {
            "rule": discovery.rule_params,
            "adam": None if per_agent else discovery.adam[0],
            "groups": groups,
            "stats": stats.state(),
        }
        run.checkpoints.save(step, content)


def _restored(run: _Run, template: Discovery) -> tuple[Discovery, PopulationStats, int]:
    """The last checkpoint, as if the run had never stopped."""
    loaded = run.checkpoints.latest()
    if loaded is None:
        raise DiscorlError(f"{run.folder} has no checkpoint yet: start the run anew")
    content = loaded.content
    groups, adam = [], []
    for i, index in enumerate(run.owned):
        saved = content["groups"][str(index)]
        groups.append(restore(template.groups[i], saved["state"]))
        if run.optimiser.per_agent:
            adam.append(restore(template.adam[i], saved["adam"]))
        run.generators[i].set_state(saved["generator"])
    if not run.optimiser.per_agent:
        adam = [restore(template.adam[0], content["adam"])]
    params = restore(template.rule_params, content["rule"])
    stats = PopulationStats(run.config.tasks, content["stats"])
    return Discovery(params, tuple(groups), tuple(adam)), stats, loaded.step


def _rows_until(path: Path, step: int, rewrite: bool) -> list[dict[str, Any]]:
    """The metrics up to a checkpoint; what was logged after it will be logged again."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:  # the last line of a run that was killed
            break
        if row["step"] <= step:
            rows.append(row)
    if rewrite:
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return rows
