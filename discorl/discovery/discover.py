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
from discorl.discovery.judge import Best, Judge
from discorl.discovery.state import DiscoverState, restore_state, snapshot
from discorl.discovery.stats import PopulationStats
from discorl.discovery.trials import make_trial, rule_settings
from discorl.envs.base import close_env
from discorl.errors import DiscorlError
from discorl.meta.crew import Crew
from discorl.meta.evolution import live_pairs, num_pairs
from discorl.meta.meta_step import StepInfo, WindowResult, init_discovery, meta_step
from discorl.meta.population import Group, GroupState, Lifetimes, without_replay
from discorl.meta.trial import Trial
from discorl.rules.disco import DiscoRule
from discorl.rules.store import save_rule
from discorl.runs import distributed
from discorl.runs.changes import check_changes
from discorl.runs.config_file import from_json, read_settings
from discorl.runs.curves import plot_discovery
from discorl.runs.distributed import Ranks
from discorl.runs.metrics import Row
from discorl.runs.program import Asked, Diverged, read_metrics
from discorl.runs.run import run
from discorl.runs.summary import run_html, run_line
from discorl.training.kernels import uses_kernels
from discorl.types import Params

BEST = "best.npz"


@dataclass(frozen=True)
class DiscoverResult:
    """A finished or interrupted run."""

    folder: Path
    rule: DiscoRule
    params: Params
    interrupted: bool
    best: Best | None = None
    """The rule in best.npz: the one that did best on the held-out tasks, if there are any."""

    @property
    def metrics(self) -> list[Row]:
        """The rows of metrics.jsonl, read from the folder each time you ask for them."""
        return read_metrics(self.folder)

    def __fspath__(self) -> str:
        """A run is its folder, wherever a path is asked for."""
        return str(self.folder)

    def __repr__(self) -> str:
        return run_line(self.folder, "interrupted" if self.interrupted else "")

    def _repr_html_(self) -> str:
        return run_html(self.folder, "interrupted" if self.interrupted else "")


def discover(
    config: DiscoverConfig,
    console: Console | None = None,
    envs: Mapping[str, Any] | None = None,
) -> DiscoverResult:
    """Discover a rule and leave a run folder: config.json, metrics.jsonl, curve.png, rule.npz.

    Rules along the way are saved in snapshots/, and the one that did best on the tasks of
    ``config.held_out``, if there are any, in best.npz. Ctrl-C ends the run early; what it has found
    is kept, and ``resume_discovery`` continues from it. Started by torchrun, the processes share
    the groups.

    ``envs`` are environments of your own, by the name that stands for the task in ``config.tasks``
    or ``config.held_out``: a function that makes a ``gymnasium.Env``, or a ready vector environment
    with a copy for each agent and each of ``config.window.num_envs`` (of a held-out task, a
    multiple of ``config.eval_agents``).
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
    return DiscoverResult(done.folder, program.rule, params, done.interrupted, program.best)


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
        self._saved: Best | None = None
        self._crew = Crew()
        self.row_every: Sequence[int] = (config.log_every, config.eval_every)

    def begin(self, before: dict[str, Any] | None = None) -> str:
        """The rule at its start, newborn agents, and those who judge the rule."""
        config, ranks = self.config, self.ranks
        self._resumed = config.out if before else None
        if before:
            check_changes(config.out, from_json(DiscoverConfig, before), config, MAY_CHANGE)
        kernels = "on" if uses_kernels(config, ranks, before, for_agents=True) else "off"
        self.config = config = dataclasses.replace(config, kernels=kernels)
        if ranks.size > len(config.groups):
            raise DiscorlError(
                f"{ranks.size} processes cannot share {len(config.groups)} groups of agents: each "
                "needs a whole group; start fewer processes, or split --tasks into more groups"
            )
        self.rule, params = starting_rule(config)
        self.optimiser = config.meta_optimiser
        self.owned = ranks.deal(len(config.groups))
        mine = self.owned[ranks.rank]
        self.trials: list[Trial] = []
        if config.estimator == "evolution":
            config.evolution.check(params)
            self.optimiser = dataclasses.replace(self.optimiser, per_agent=False)
            self.trials = [self._pairs(i) for i in mine]
            self.groups = [without_replay(trial.group) for trial in self.trials]
        else:
            self.groups = [self._group(config.groups[i]) for i in mine]
        self.judge = None
        if config.held_out:
            self.judge = Judge(config, self.rule, ranks, self._users_envs, self._resumed)
        generators = [self._generator(i + 1) for i in mine]
        params = tree.to(params, ranks.device)
        discovery = init_discovery(self.groups, params, self.optimiser, generators)
        stats = PopulationStats(groups_of(config.tasks))
        per_agent = self.optimiser.per_agent
        judged = self.judge.begin(params) if self.judge else None
        self.state = DiscoverState(discovery, per_agent, generators, stats, self.groups, judged)
        return f"Discovering on {ranks.device}"

    def _group(self, group: GroupConfig) -> Group:
        env = self._users_envs.get(group.task)
        return make_group(self.config, group, self.rule, self.ranks.device, env, self._resumed)

    def _pairs(self, i: int) -> Trial:
        """The agents of a group, half as many: each stands for a pair."""
        config, group = self.config, self.config.groups[i]
        settings = rule_settings(groups_of(config.tasks)[i], self.rule)
        env, device = self._users_envs.get(group.task), self.ranks.device
        (pairs,) = num_pairs([group.num_agents])
        longest = max(config.budgets)
        return make_trial(config, settings, self.rule, device, env, self._resumed, pairs, longest)

    def _live_pairs(
        self, i: int, params: Params, state: GroupState, generator: torch.Generator
    ) -> WindowResult:
        lifetimes = Lifetimes(self.config.budgets)
        return live_pairs(
            self.trials[i], lifetimes, self.config.evolution, params, state, generator
        )

    def _generator(self, stream: int) -> torch.Generator:
        device = self.ranks.device
        return torch.Generator(device).manual_seed(self.config.seed * 1_000_003 + stream)

    def step(self, folder: Path) -> None:
        """A meta-step, together with the other processes; the first ones may be a warm start."""
        state, config, optimiser = self.state, self.config, self.optimiser
        self._save_best(folder)  # of the row before, or of the run that this one resumes
        step = state.step + 1
        imitate = step <= config.num_imitations
        if imitate:
            optimiser = dataclasses.replace(optimiser, learning_rate=config.warm_start_rate)
        live = self._live_pairs if self.trials and not imitate else None
        discovery, info = meta_step(
            *(self.groups, state.discovery, optimiser, state.generators),
            *(self._sum, imitate, live, self._crew),
        )
        self._check_alive(info)
        state.discovery, state.step = discovery, step
        if state.judged:
            state.judged = state.judged.with_step(discovery.rule_params, step, config.eval_average)
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

    def position(self) -> int:
        """In meta-steps."""
        return self.state.step

    def watch(self, folder: Path, row: Row | None) -> None:
        """Nobody looks on."""

    def asked(self) -> Asked:
        """Nothing."""
        return Asked()

    def row(self) -> Row:
        """Returns of the population, how the rule moves and, at times, held-out tasks."""
        step, config = self.state.step, self.config
        row = self.state.stats.summary()
        if self.state.judged and (step % config.eval_every == 0 or step == config.steps):
            assert self.judge is not None
            params = self.state.discovery.rule_params
            self.state.judged, judgement = self.judge.judge(self.state.judged, params, step)
            row |= judgement
        return row

    @property
    def best(self) -> Best | None:
        """The rule that did best on the held-out tasks, if any was judged."""
        judged = self.state.judged
        return judged.best if judged and judged.best.step else None

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
        """The rule, the best one, and the curves."""
        path = folder / self.result
        self._save(path)
        self._save_best(folder)
        if self.ranks.is_first:
            plot_discovery(folder / "curve.png", rows)
        for group in self.groups:
            close_env(group.env)
        if self.judge:
            self.judge.close()
        if not self.best:
            return f"Rule: {path}"
        what = f"meta-step {self.best.step}{', averaged' if self.best.is_average else ''}"
        return (
            f"Rule: {path}\nBest on the held-out tasks: {what}, with {self.best.score:.2f} (0 is "
            f"untrained, 1 the actor-critic). To train with it: discorl train TASK --rule "
            f"{folder / BEST}"
        )

    def _save_best(self, folder: Path) -> None:
        """Write the best rule, unless it is there already."""
        best = self.best
        if best and best is not self._saved:
            score = {"validation": best.score, "averaged": best.is_average}
            held_out = " ".join(self.config.held_out)
            self._write(folder / BEST, best.params, best.step, score | {"held_out": held_out})
        self._saved = best

    def _save(self, path: Path) -> None:
        """Write the rule."""
        self._write(path, self.state.discovery.rule_params, self.state.step)

    def _write(
        self, path: Path, params: Params, step: int, more: dict[str, Any] | None = None
    ) -> None:
        """Write a rule and where it comes from."""
        if not self.ranks.is_first:
            return
        config = self.config
        path.parent.mkdir(parents=True, exist_ok=True)
        provenance = {
            "discovered_by": f"discorl {__version__}, torch {torch.__version__}",
            "meta_steps": step,
            "seed": config.seed,
            "init": Path(config.init).name,  # rules are published; folders are private
            "warm_start": min(step, config.num_imitations),
            "estimator": config.estimator,
            "tasks": " ".join(config.tasks),
        }
        save_rule(path, self.rule, params, provenance | (more or {}))

    def settings(self) -> dict[str, Any]:
        """The configuration as it is."""
        return dataclasses.asdict(self.config)
