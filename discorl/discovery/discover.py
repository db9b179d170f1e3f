"""Discovering a rule: a population lives, and the rule follows the gradient of its returns."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from discorl import __version__, tree
from discorl.atomic import write_atomically
from discorl.discovery.build import make_group, meta_optimiser, starting_rule
from discorl.discovery.checkpoint import DiscoverState, DiscoveryCheckpoints
from discorl.discovery.config import DiscoverConfig, GroupConfig
from discorl.discovery.curve import plot_discovery
from discorl.discovery.stats import PopulationStats, metric_names
from discorl.errors import DiscorlError
from discorl.meta.meta_step import Discovery, StepInfo, init_discovery, meta_step
from discorl.meta.population import Group
from discorl.meta.trial import run_trial
from discorl.rules.disco import DiscoRule
from discorl.rules.store import save_rule
from discorl.runs import distributed
from discorl.runs.distributed import Ranks
from discorl.runs.files import held, new_run_folder, write_json
from discorl.runs.interrupt import StopRequest
from discorl.runs.malloc import keep_freed_memory
from discorl.runs.metrics import MetricsFile, read_rows
from discorl.runs.progress import RunProgress
from discorl.training.run_config import read_settings
from discorl.types import Params


@dataclass(frozen=True)
class DiscoverResult:
    """A finished or interrupted run."""

    folder: Path
    rule: DiscoRule
    params: Params
    metrics: list[dict[str, Any]]
    interrupted: bool


class DiscoverRun:
    """What stays the same while a rule is discovered, in one process."""

    def __init__(self, config: DiscoverConfig, ranks: Ranks) -> None:
        if ranks.size > len(config.groups):
            raise DiscorlError(
                f"{ranks.size} processes for {len(config.groups)} groups of agents: a process owns "
                "whole groups; start fewer, or split --tasks into more groups"
            )
        self.config = config
        self.ranks = ranks
        self.rule, self.start = starting_rule(config)
        # A process owns whole groups; each has its own random numbers, so that a population does
        # the same however it is spread over processes.
        self.owned = self._owned(config.groups)
        self.groups = [self._group(config.groups[i]) for i in self.owned]
        self.generators = [self._generator(i + 1) for i in self.owned]
        self.optimiser = meta_optimiser(config)
        self.trials = {i: self._trial(config.held_out[i]) for i in self._owned(config.held_out)}

    def _owned(self, entries: Sequence[Any]) -> list[int]:
        return [i for i in range(len(entries)) if i % self.ranks.size == self.ranks.rank]

    def _group(self, group: GroupConfig) -> Group:
        return make_group(self.config, group, self.rule, self.ranks.device)

    def _trial(self, text: str) -> Group:
        group = GroupConfig.parse(text, self.config.net)
        return self._group(dataclasses.replace(group, num_agents=self.config.eval_agents))

    def _generator(self, stream: int) -> torch.Generator:
        device = self.ranks.device
        return torch.Generator(device).manual_seed(self.config.seed * 1_000_003 + stream)

    def begin(self) -> Discovery:
        """The rule at its start, and newborn agents."""
        params = tree.to(self.start, self.ranks.device)
        return init_discovery(self.groups, params, self.optimiser, self.generators)

    def step(self, discovery: Discovery, step: int) -> tuple[Discovery, StepInfo]:
        """A meta-step, together with the other processes; the first ones may be a warm start."""
        imitate, optimiser = step <= self.config.num_imitations, self.optimiser
        if imitate:
            optimiser = dataclasses.replace(optimiser, learning_rate=self.config.warm_start_rate)
        return meta_step(self.groups, discovery, optimiser, self.generators, self._sum, imitate)

    def evaluate(self, params: Params) -> dict[str, float]:
        """Mean return of fresh agents on each held-out task, over the last fifth of a trial."""
        scores, names = {}, metric_names(self.config.held_out)
        for i, group in self.trials.items():
            rng = self._generator(1_000 + i)  # the same agents and tasks each time
            curve = run_trial(group, params, self.config.eval_updates, rng)
            scores[f"held_out/{names[i]}"] = float(curve[-max(1, len(curve) // 5) :].nanmean())
        return distributed.merge(scores)

    def save(self, params: Params, step: int, path: Path) -> None:
        """Write the rule, with where it comes from."""
        if not self.ranks.is_first:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        provenance = {
            "discovered_by": f"discorl {__version__}, torch {torch.__version__}",
            "meta_steps": step,
            "seed": self.config.seed,
            "init": Path(self.config.init).name,  # rules are published; folders are private
            "warm_start": min(step, self.config.num_imitations),
            "tasks": " ".join(self.config.tasks),
        }
        save_rule(path, self.rule, params, provenance)

    def _sum(self, params: Params) -> Params:
        """Add up over all processes, in one message; every process gets the same bits."""
        if self.ranks.size == 1:
            return params
        flat = torch.cat([p.flatten() for p in params.values()])
        flat = distributed.mean(flat) * self.ranks.size
        parts = flat.split([p.numel() for p in params.values()])
        return {k: x.reshape(p.shape) for (k, p), x in zip(params.items(), parts, strict=True)}


def discover(config: DiscoverConfig, console: Console | None = None) -> DiscoverResult:
    """Discover a rule and leave a run folder: config.json, metrics.jsonl, curve.png, rule.npz.

    Rules on the way are saved in snapshots/. Ctrl-C ends the run early; what it has found is kept,
    and ``resume_discovery`` goes on. Started by torchrun, the processes share the groups.
    """
    ranks = distributed.start(config.device)
    try:
        if ranks.restarts and distributed.was_begun(config.out, ranks):
            assert config.out is not None
            begun = read_settings(config.out, DiscoverConfig)[1]
            return _discover(_set_up(config, ranks), config.out, begun, console, resumed=True)
        run = _set_up(config, ranks)
        settings = dataclasses.asdict(config) | {"kind": "discover", "discorl": __version__}
        settings |= {"torch": torch.__version__}
        folder = Path(
            distributed.broadcast(
                str(new_run_folder(config.out, "discover")) if ranks.is_first else None
            )
        )
        return _discover(run, folder, settings, console, resumed=False)
    finally:
        distributed.stop()


def resume_discovery(
    folder: Path, console: Console | None = None, **changes: Any
) -> DiscoverResult:
    """Go on with a run from its last checkpoint, as if it had never stopped.

    ``changes`` may be ``steps`` and ``progress``; the folder remembers them. The number of
    processes may be another.
    """
    config, begun = read_settings(folder, DiscoverConfig)
    config = dataclasses.replace(config, **changes)
    ranks = distributed.start(config.device)
    try:
        return _discover(_set_up(config, ranks), folder, begun | changes, console, resumed=True)
    finally:
        distributed.stop()


def _set_up(config: DiscoverConfig, ranks: Ranks) -> DiscoverRun:
    keep_freed_memory()
    run = DiscoverRun(config, ranks)
    distributed.any_of(False)  # wait: where a process could not build its groups, none goes on
    return run


def _discover(
    run: DiscoverRun,
    folder: Path,
    settings: dict[str, Any],
    console: Console | None,
    resumed: bool,
) -> DiscoverResult:
    """Take the folder, and the last checkpoint if there is one; then step."""
    config, ranks = run.config, run.ranks
    quiet = config.progress == "none" or not ranks.is_first
    console = Console(quiet=True) if quiet else console or Console()
    checkpoints = DiscoveryCheckpoints(folder / "checkpoints", config.keep_checkpoints)
    with held(folder) if ranks.is_first else nullcontext():
        state = DiscoverState(run.begin(), PopulationStats(config.tasks))
        if resumed:
            checkpoints.restore(run, state)
            if state.step > config.steps:
                raise DiscorlError(
                    f"{folder} is at meta-step {state.step} already; give --steps of at least that"
                )
            console.print(f"Going on with {folder} after meta-step {state.step}", highlight=False)
        else:
            console.print(f"Discovering on {ranks.device}, into {folder}", highlight=False)
        if ranks.is_first:
            write_json(folder / "config.json", settings)
        return _step_to_the_end(run, state, checkpoints, folder, console)


def _step_to_the_end(
    run: DiscoverRun,
    state: DiscoverState,
    checkpoints: DiscoveryCheckpoints,
    folder: Path,
    console: Console,
) -> DiscoverResult:
    """The loop."""
    config, ranks, stats = run.config, run.ranks, state.stats
    start = time.monotonic() - state.seconds
    with (
        StopRequest(patient=ranks.size > 1) as stop,
        _Metrics(folder / "metrics.jsonl", state.step, ranks.is_first) as log,
        RunProgress(config.steps, config.progress, "success", console, state.step) as progress,
    ):
        while state.step < config.steps:
            before = state.discovery
            state.step += 1
            step = state.step
            state.discovery, info = run.step(before, step)
            _check_alive(run, before, info, step, folder / "rule.npz")
            stats.observe(run.owned, info)
            (is_last,) = distributed.any_of(step == config.steps or stop.requested)
            held_out = {}
            finished = step == config.steps
            if step % config.eval_every == 0 or finished:
                held_out = run.evaluate(state.discovery.rule_params)
            state.seconds = time.monotonic() - start
            if step % config.log_every == 0 or step % config.eval_every == 0 or finished:
                row = {"step": step, "seconds": round(state.seconds, 2)}
                row |= stats.summary() | held_out
                log.write(row)
                progress.update(step, row)
            if step % config.snapshot_every == 0 or finished:
                path = folder / "snapshots" / f"rule-{step}.npz"
                run.save(state.discovery.rule_params, step, path)
            if step % config.checkpoint_every == 0 or is_last:
                checkpoints.save(run, state)
            if is_last:
                break
    params = state.discovery.rule_params
    run.save(params, state.step, folder / "rule.npz")
    if ranks.is_first:
        plot_discovery(folder / "curve.png", log.rows)
    interrupted = state.step < config.steps
    said = f"Stopped by {stop.reason}" if interrupted else "Done"
    console.print(f"{said}. Rule: {folder / 'rule.npz'}", highlight=False)
    if interrupted:
        console.print(f"Go on with: discorl discover --resume {folder}", highlight=False)
    return DiscoverResult(folder, run.rule, params, log.rows, interrupted)


class _Metrics:
    """metrics.jsonl from a step on; what was logged after the last checkpoint is logged again."""

    def __init__(self, path: Path, done: int, is_first: bool) -> None:
        self.rows = [row for row in read_rows(path) if row["step"] <= done] if done else []
        self._file = None
        if is_first:
            text = "".join(json.dumps(row) + "\n" for row in self.rows)
            write_atomically(path, text.encode())
            self._file = MetricsFile(path)

    def __enter__(self) -> _Metrics:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if self._file is not None:
            self._file.write(row)


def _check_alive(
    run: DiscoverRun, before: Discovery, info: StepInfo, step: int, path: Path
) -> None:
    """Stop when no agent has a usable gradient: the rule has driven all of them apart."""
    if info.num_skipped < info.num_agents:
        return
    run.save(before.rule_params, step - 1, path)
    raise DiscorlError(
        f"every agent's meta-gradient was NaN or beyond --meta-optimiser.max-norm at meta-step "
        f"{step}: lower --meta-optimiser.learning-rate or --learning-rate. The last good rule is "
        f"{path}"
    )
