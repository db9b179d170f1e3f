"""Training one agent: act, store, sample, learn."""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from discorl import tree
from discorl.agents.compiled import compile_agent
from discorl.agents.rollout import check_rollout, collect_rollout
from discorl.agents.update import update_agent
from discorl.config import TrainConfig
from discorl.envs.registry import make_env
from discorl.errors import DiscorlError
from discorl.runs.curve import plot_curve, text_curve
from discorl.runs.device import choose_device
from discorl.runs.files import new_run_folder, save_params, write_json
from discorl.runs.memory import keep_freed_memory
from discorl.runs.progress import RunProgress
from discorl.runs.rule_choice import RuleChoice, choose_rule
from discorl.runs.setup import make_agent, make_replay
from discorl.runs.stats import EpisodeStats, UpdateStats


@dataclass(frozen=True)
class RunResult:
    """A finished or interrupted run."""

    folder: Path
    metrics: list[dict[str, Any]]
    interrupted: bool


def train(config: TrainConfig, console: Console | None = None) -> RunResult:
    """Train an agent and leave a run folder: config.json, metrics.jsonl, curve.png, agent.npz.

    Ctrl-C ends the run early; what it has learnt is kept.
    """
    console = console or Console(quiet=config.progress == "none")
    keep_freed_memory()
    device = choose_device(config.device)
    env = make_env(config.task, config.num_envs, device)
    choice = choose_rule(config)
    agent = make_agent(config, env.spec, choice.rule)
    if config.compile:
        agent = compile_agent(agent)
    rule_params = tree.to(choice.params, device)

    folder = new_run_folder(config.out, f"{config.task.replace(':', '-')}-{choice.name}")
    write_json(folder / "config.json", resolved(config, choice, device, folder))
    console.print(f"{choice.note}\n" if choice.note else "", end="", highlight=False)
    console.print(
        f"Training on {config.task} with {choice.name} on {device}, into {folder}", highlight=False
    )

    # One stream of random numbers for each purpose, so that no one of them moves the others.
    init_rng, act_rng, sample_rng = (
        torch.Generator(device=d).manual_seed(config.seed * 3 + i)
        for i, d in enumerate(["cpu", device, "cpu"])
    )
    state = agent.init_state(init_rng, device)
    env_state, timestep = env.reset(act_rng)
    core_state = None
    replay = make_replay(config)
    episodes = EpisodeStats(env.spec, config.num_envs)
    updates = UpdateStats()
    rows: list[dict[str, Any]] = []
    interrupted = False
    start = time.monotonic()

    with (
        (folder / "metrics.jsonl").open("w") as log,
        RunProgress(config.steps, config.progress, env.spec.success_name, console) as progress,
    ):
        try:
            for step in range(1, config.steps + 1):
                rollout, env_state, timestep, core_state = collect_rollout(
                    agent.net,
                    state.params,
                    env,
                    env_state,
                    timestep,
                    config.rollout_length,
                    act_rng,
                    core_state=core_state,
                )
                check_rollout(rollout)
                replay.add(rollout)
                episodes.observe(rollout)
                if len(replay) >= config.batch_size:
                    for _ in range(config.updates_per_step):
                        batch = replay.sample(config.batch_size, sample_rng, config.num_fresh)
                        state, info = update_agent(agent, rule_params, state, batch)
                        updates.observe(info)

                if step % config.log_every == 0 or step == config.steps:
                    elapsed = time.monotonic() - start
                    row = {
                        "step": step,
                        "env_steps": step * config.num_envs * config.rollout_length,
                        "seconds": round(elapsed, 3),
                        "steps_per_second": round(step / elapsed, 3),
                        "episodes": episodes.num_episodes,
                        **episodes.summary(),
                        **updates.summary(),
                    }
                    _check_finite(row)
                    rows.append(row)
                    log.write(json.dumps(row) + "\n")
                    log.flush()
                    progress.update(step, row)
        except KeyboardInterrupt:
            interrupted = True

    save_params(folder / "agent.npz", state.params)
    title = f"{config.task}, {choice.name}, seed {config.seed}"
    plot_curve(folder / "curve.png", rows, title, env.spec.success_name)
    if curve := text_curve(rows):
        console.print(curve, highlight=False)
    if interrupted:
        console.print(f"Stopped by Ctrl-C; what there is stays in {folder}", highlight=False)
    else:
        console.print(f"Done. Curve: {folder / 'curve.png'}", highlight=False)
    return RunResult(folder, rows, interrupted)


def resolved(
    config: TrainConfig, choice: RuleChoice, device: torch.device, folder: Path
) -> dict[str, Any]:
    """The configuration with everything that was left open filled in."""
    filled = dataclasses.asdict(config) | {"device": str(device), "out": str(folder)}
    rule = {"name": choice.name, "path": str(choice.path) if choice.path else None}
    return filled | {"rule": choice.name, "resolved_rule": rule, "torch": torch.__version__}


def _check_finite(row: dict[str, Any]) -> None:
    loss = row.get("loss", 0.0)
    if loss != loss or abs(loss) == float("inf"):
        raise DiscorlError(
            f"the loss is {loss} at step {row['step']}: lower --optimiser.learning-rate, or check "
            "the scale of observations and rewards"
        )
