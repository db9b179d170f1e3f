"""Evaluating a trained agent: whole episodes, without learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import Tensor

from discorl.agents.episodes import RunningEpisodes
from discorl.bounds import MAX_AT_ONCE, MAX_COUNT, check_between, shown
from discorl.comparison.human import human_scale
from discorl.comparison.statistics import Estimate, aggregate, mean
from discorl.envs.base import Env
from discorl.errors import DiscorlError
from discorl.runs.terminal import as_html, cell, say
from discorl.training.agent_files import BEST
from discorl.training.trained_agent import LoadedAgent, load_agent
from discorl.types import TimeStep

MAX_EPISODE_STEPS = 27_000
"""30 minutes of Atari at 15 actions a second."""
SAMPLES = 10_000


@dataclass(frozen=True)
class Episodes:
    """Finished episodes of one seed."""

    seed: int
    returns: list[float]
    lengths: list[int]
    num_cut: int
    """Episodes that were stopped at the step limit; they count with the return they had by then."""


@dataclass(frozen=True)
class Evaluation:
    """What an agent scores."""

    run: str
    task: str
    rule: str
    policy: str
    seeds: list[Episodes]
    score: Estimate
    """Mean return, with an interval over episodes: it says nothing about other training seeds."""
    mean_length: float
    success: Estimate | None
    success_name: str
    human_normalised: Estimate | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        num = sum(len(p.returns) for p in self.seeds)
        success = f", {self.success_name} {_estimate(self.success)}" if self.success else ""
        return (
            f"<Evaluation of {self.run} ({self.task}, {self.rule}, {self.policy} actions): "
            f"{num} episodes, mean return {_estimate(self.score)}{success}>"
        )

    def _repr_html_(self) -> str:
        return as_html(partial(print_evaluation, self))


def evaluate(
    agent: LoadedAgent | PathLike[str] | str,
    episodes: int = 100,
    seeds: Sequence[int] = (0,),
    greedy: bool = False,
    num_envs: int = 16,
    max_steps: int = MAX_EPISODE_STEPS,
    best: bool = False,
) -> Evaluation:
    """Play ``episodes`` whole episodes with each seed of the environment.

    ``agent`` comes from ``load_agent``, or is the folder of a run, of which ``best`` plays the
    agent that scored best while it trained.
    """
    if not isinstance(agent, LoadedAgent):
        agent = load_agent(Path(agent), best=best)
    elif best and agent.file.name != BEST:
        raise DiscorlError("this agent is loaded already: use load_agent(run, best=True)")
    check_between(1, MAX_COUNT, "episodes", episodes)
    check_between(1, MAX_AT_ONCE, "num_envs", num_envs)
    check_between(1, MAX_COUNT, "max_steps", max_steps)
    if not seeds or len(set(seeds)) < len(seeds):
        raise DiscorlError("seeds: give at least one, and each only once")
    if max(map(abs, seeds)) >= 2**60:
        raise DiscorlError(f"seeds must be below 2^60, not {shown(max(seeds, key=abs))}")
    env = agent.make_env(min(num_envs, episodes))
    played = [play(agent, env, episodes, seed, greedy, max_steps) for seed in seeds]
    rng = np.random.default_rng(0)
    returns = [np.array(p.returns) for p in played]
    goal = env.spec.success_return
    wins = None if goal is None else [(r >= goal).astype(np.float64) for r in returns]
    normalise = human_scale(agent.config.task)
    return Evaluation(
        run=str(agent.folder),
        task=agent.config.task,
        rule=agent.rule_name,
        policy="greedy" if greedy else "sampled",
        seeds=played,
        score=aggregate(returns, SAMPLES, rng, mean),
        mean_length=float(np.mean([n for p in played for n in p.lengths])),
        success=None if wins is None else aggregate(wins, SAMPLES, rng, mean),
        success_name=env.spec.success_name,
        human_normalised=None
        if normalise is None
        else aggregate([np.array([normalise(x) for x in r]) for r in returns], SAMPLES, rng, mean),
    )


def play(
    agent: LoadedAgent, env: Env, episodes: int, seed: int, greedy: bool, max_steps: int
) -> Episodes:
    """Play episodes on all copies at once.

    Each copy has its share to play. Taking whichever end first would favour short episodes.
    """
    at = agent.begin(env, seed)
    running = RunningEpisodes(env.num_envs, torch.float64)
    running.add(rewards_of(at.timestep), at.timestep.is_dead)
    left = torch.full((env.num_envs,), episodes // env.num_envs)
    left[: episodes % env.num_envs] += 1
    finished: list[tuple[float, float]] = []
    num_cut = 0
    while bool(left.any()):
        _, at = agent.step(env, at, greedy)
        running.add(rewards_of(at.timestep), at.timestep.is_dead)
        ended = at.timestep.ended.cpu() & (left > 0)
        stuck = ~ended & (running.lengths >= max_steps) & (left > 0)
        finished += running.take(ended | stuck)
        num_cut += int(stuck.sum())
        left = torch.where(stuck, 0, left - ended.long())  # a stuck copy cannot be restarted
    return Episodes(seed, [r for r, _ in finished], [int(n) for _, n in finished], num_cut)


def rewards_of(timestep: TimeStep) -> Tensor:
    """Rewards as the environment gave them, not as they were scaled for learning."""
    raw = timestep.raw_reward
    rewards = (timestep.reward if raw is None else raw).cpu().double()
    if not bool(rewards.isfinite().all()):
        raise DiscorlError("the environment sent rewards that are NaN or infinite")
    return rewards


def print_evaluation(result: Evaluation, console: Console) -> None:
    """A row for each seed, and one for all of them."""
    title = f"{result.task}, {result.rule}, {result.policy} actions"
    table = Table(title=cell(title), title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.add_column("seed")
    for name in ("episodes", "mean return", "deviation", "lowest", "highest", "length"):
        table.add_column(name, justify="right")
    everything = [r for p in result.seeds for r in p.returns]
    for p in result.seeds if len(result.seeds) > 1 else []:
        table.add_row(str(p.seed), *_cells(p.returns, float(np.mean(p.lengths))))
    name = "all" if len(result.seeds) > 1 else str(result.seeds[0].seed)
    table.add_row(name, *_cells(everything, result.mean_length))
    console.print(table)
    estimates = {"mean return": result.score, result.success_name: result.success}
    estimates["human-normalised"] = result.human_normalised
    for name, estimate in estimates.items():
        if estimate is not None:
            say(console, f"{name}: {_estimate(estimate)}")
    if cut := sum(p.num_cut for p in result.seeds):
        say(
            console,
            f"Note: {cut} episodes did not end and were cut off at the step limit (--max-steps); "
            "they count with the return they had by then",
        )


def _cells(returns: list[float], length: float) -> list[str]:
    numbers = (np.mean(returns), np.std(returns), min(returns), max(returns))
    return [str(len(returns)), *(f"{x:.3f}" for x in numbers), f"{length:.1f}"]


def _estimate(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3f} (one episode: no interval)"
    return f"{estimate.value:.3f} (95 % interval {estimate.low:.3f} to {estimate.high:.3f})"
