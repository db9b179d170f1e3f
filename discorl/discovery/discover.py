"""Discovering a rule: a population lives, and the rule follows the gradient of its returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from discorl import __version__, tree
from discorl.discovery.build import make_group, starting_rule
from discorl.discovery.config import MAY_CHANGE, DiscoverConfig, GroupConfig, groups_of
from discorl.discovery.state import DiscoverState, restore_state, snapshot
from discorl.discovery.stats import PopulationStats, metric_names
from discorl.envs.base import close_env
from discorl.errors import DiscorlError
from discorl.meta.meta_step import StepInfo, init_discovery, meta_step
from discorl.meta.population import Group
from discorl.meta.trial import run_trial
from discorl.rules.disco import DiscoRule
from discorl.rules.store import save_rule
from discorl.runs import distributed
from discorl.runs.changes import check_changes
from discorl.runs.config_file import from_json, read_settings
from discorl.runs.curves import plot_discovery
from discorl.runs.distributed import Ranks
from discorl.runs.metrics import Row
from discorl.runs.program import Diverged, read_metrics
from discorl.runs.run import run
from discorl.types import Params


@dataclass(frozen=True)
class DiscoverResult:
    """A finished or interrupted run."""

    folder: Path
    rule: DiscoRule
    params: Params
    interrupted: bool

    @property
    def metrics(self) -> list[Row]:
        """The rows of metrics.jsonl, read from the folder each time you ask for them."""
        return read_metrics(self.folder)


def discover(
    config: DiscoverConfig,
    console: Console | None = None,
    envs: Mapping[str, Any] | None = None,
) -> DiscoverResult:
    """Discover a rule and leave a run folder: config.json, metrics.jsonl, curve.png, rule.npz.

    Rules along the way are saved in snapshots/. Ctrl-C ends the run early; what it has found is
    kept, and ``resume_discovery`` continues from it. Started by torchrun, the processes share the
    groups.

    ``envs`` are environments of your own, by the name that stands for the task in ``config.tasks``
    or ``config.held_out``: a function that makes a ``gymnasium.Env``, or a ready vector environment
    with a copy for each agent and each of ``config.window.num_envs``.
    """
    return _run(config, console, envs, resume=False)


def resume_discovery(
    folder: Path | str,
    console: Console | None = None,
    envs: Mapping[str, Any] | None = None,
    **changes: Any,
) -> DiscoverResult:
    """Continue a run from its last checkpoint, as if it had never stopped.

    ``changes`` are fields of ``DiscoverConfig``, and the folder remembers them;
    ``discovery.config.MAY_CHANGE`` lists what may differ. The number of processes may, too.
    ``envs`` must be given again. A run that diverged goes back to its last good checkpoint.
    """
    config, _ = read_settings(folder, DiscoverConfig, "discover")
    return _run(dataclasses.replace(config, **changes), console, envs, resume=True)


def _run(
    config: DiscoverConfig, console: Console | None, envs: Mapping[str, Any] | None, resume: bool
) -> DiscoverResult:
    with distributed.joined(config.device, config.timeout_minutes) as ranks:
        program = Discovering(config, ranks, envs)
        done = run(program, console, resume)
    params = program.state.discovery.rule_params
    return DiscoverResult(done.folder, program.rule, params, done.interrupted)


class Discovering:
    """The program: in each step every group lives a window, and the rule takes a step.

    A process owns whole groups, and each of them has its own random numbers.
    """

    kind, unit, result = "discover", "meta-step", "rule.npz"
    name, success_name = "discover", "success"

    def __init__(
        self, config: DiscoverConfig, ranks: Ranks, envs: Mapping[str, Any] | None = None
    ) -> None:
        self.config, self.ranks = config, ranks
        self._users_envs = envs or {}
        self.row_every: Sequence[int] = (config.log_every, config.eval_every)

    def begin(self, before: dict[str, Any] | None = None) -> str:
        """The rule at its start, newborn agents, and the groups that try the rule."""
        config, ranks = self.config, self.ranks
        self._resumed = config.out if before else None
        if before:
            check_changes(config.out, from_json(DiscoverConfig, before), config, MAY_CHANGE)
        if ranks.size > len(config.groups):
            raise DiscorlError(
                f"{ranks.size} processes cannot share {len(config.groups)} groups of agents: each "
                "needs a whole group; start fewer processes, or split --tasks into more groups"
            )
        self.rule, params = starting_rule(config)
        self.optimiser = config.meta_optimiser
        self.owned = ranks.deal(len(config.groups))
        mine, tried = self.owned[ranks.rank], ranks.deal(len(config.trials))[ranks.rank]
        self.groups = [self._group(config.groups[i]) for i in mine]
        self.trials = {i: self._group(config.trials[i]) for i in tried}
        generators = [self._generator(i + 1) for i in mine]
        params = tree.to(params, ranks.device)
        discovery = init_discovery(self.groups, params, self.optimiser, generators)
        stats = PopulationStats(groups_of(config.tasks))
        per_agent = self.optimiser.per_agent
        self.state = DiscoverState(discovery, per_agent, generators, stats, self.groups)
        return f"Discovering on {ranks.device}"

    def _group(self, group: GroupConfig) -> Group:
        env = self._users_envs.get(group.task)
        return make_group(self.config, group, self.rule, self.ranks.device, env, self._resumed)

    def _generator(self, stream: int) -> torch.Generator:
        device = self.ranks.device
        return torch.Generator(device).manual_seed(self.config.seed * 1_000_003 + stream)

    def step(self, folder: Path) -> None:
        """A meta-step, together with the other processes; the first ones may be a warm start."""
        state, config, optimiser = self.state, self.config, self.optimiser
        step = state.step + 1
        imitate = step <= config.num_imitations
        if imitate:
            optimiser = dataclasses.replace(optimiser, learning_rate=config.warm_start_rate)
        discovery, info = meta_step(
            self.groups, state.discovery, optimiser, state.generators, self._sum, imitate
        )
        self._check_alive(info)
        state.discovery, state.step = discovery, step
        state.stats.observe(self.owned[self.ranks.rank], info)
        if step % config.snapshot_every == 0 or step == config.steps:
            self._save(folder / "snapshots" / f"rule-{step}.npz")

    def _check_alive(self, info: StepInfo) -> None:
        """Stop when no agent has a usable gradient: the rule has made all of them diverge."""
        if info.num_skipped < info.num_agents:
            return
        raise Diverged(
            f"every agent's meta-gradient was NaN or above --meta-optimiser.max-norm at meta-step "
            f"{self.state.step + 1}. Try: lower --meta-optimiser.learning-rate (now "
            f"{self.optimiser.learning_rate:g}) or --learning-rate (now "
            f"{self.config.learning_rate:g}); raise --meta-optimiser.max-norm (now "
            f"{self.optimiser.max_norm:g}). The rule is as it was before that meta-step"
        )

    def _sum(self, params: Params) -> Params:
        """Add up over all processes, in one message; every process gets the same bits."""
        if self.ranks.size == 1:
            return params
        flat = torch.cat([p.flatten() for p in params.values()])
        flat = distributed.mean(flat) * self.ranks.size
        parts = flat.split([p.numel() for p in params.values()])
        return {k: x.reshape(p.shape) for (k, p), x in zip(params.items(), parts, strict=True)}

    def row(self) -> Row:
        """Returns of the population, how the rule moves and, at times, held-out tasks."""
        step, config = self.state.step, self.config
        is_tried = step % config.eval_every == 0 or step == config.steps
        return self.state.stats.summary() | (self.evaluate() if is_tried else {})

    def evaluate(self) -> dict[str, float]:
        """Mean return of fresh agents on each held-out task, over the last fifth of a trial."""
        scores, names = {}, metric_names(groups_of(self.config.held_out))
        params = self.state.discovery.rule_params
        for i, group in self.trials.items():
            rng = self._generator(1_000 + i)  # the same agents and tasks each time
            curve = run_trial(group, params, self.config.eval_updates, rng)
            scores[f"held_out/{names[i]}"] = float(curve[-max(1, len(curve) // 5) :].nanmean())
        return distributed.merge(scores)

    def snapshot(self) -> dict[str, Any] | None:
        """Everything that changes, of all processes."""
        return snapshot(self.state, self.owned[self.ranks.rank])

    def restore(self, content: dict[str, Any] | None) -> str:
        """Set the newborn state to a checkpoint's."""
        restore_state(self.state, content, self.owned, self.ranks.rank)
        if all(group.is_on_tensors for group in self.groups):
            return ""
        return "Environments that are not on tensors start new episodes; the rest is exact"

    def finish(self, folder: Path, rows: Iterable[Row]) -> str:
        """The rule and the curves."""
        path = folder / self.result
        self._save(path)
        if self.ranks.is_first:
            plot_discovery(folder / "curve.png", rows)
        for group in (*self.groups, *self.trials.values()):
            close_env(group.env)
        return f"Rule: {path}"

    def _save(self, path: Path) -> None:
        """Write the rule and where it comes from."""
        if not self.ranks.is_first:
            return
        config, step = self.config, self.state.step
        path.parent.mkdir(parents=True, exist_ok=True)
        provenance = {
            "discovered_by": f"discorl {__version__}, torch {torch.__version__}",
            "meta_steps": step,
            "seed": config.seed,
            "init": Path(config.init).name,  # rules are published; folders are private
            "warm_start": min(step, config.num_imitations),
            "tasks": " ".join(config.tasks),
        }
        save_rule(path, self.rule, self.state.discovery.rule_params, provenance)

    def settings(self) -> dict[str, Any]:
        """The configuration as it is."""
        return dataclasses.asdict(self.config)
