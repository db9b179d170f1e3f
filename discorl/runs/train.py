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
from discorl.agents.agent import Agent, adam_clip, mlp_agent_net
from discorl.agents.compiled import compile_agent
from discorl.agents.replay import Replay
from discorl.agents.rollout import check_rollout, collect_rollout
from discorl.agents.update import update_agent
from discorl.config import TrainConfig
from discorl.envs.base import Env
from discorl.envs.registry import make_env
from discorl.errors import DiscorlError, EnvFailure
from discorl.runs.curve import plot_curve, text_curve
from discorl.runs.device import choose_device
from discorl.runs.files import new_run_folder, save_params, write_json
from discorl.runs.memory import keep_freed_memory
from discorl.runs.progress import RunProgress
from discorl.runs.rule_choice import RuleChoice, choose_rule
from discorl.runs.stats import EpisodeStats, UpdateStats


@dataclass(frozen=True)
class RunResult:
    """A finished or interrupted run."""

    folder: Path
    metrics: list[dict[str, Any]]
    interrupted: bool


def train(config: TrainConfig, console: Console | None = None, env: Any = None) -> RunResult:
    """Train an agent and leave a run folder: config.json, metrics.jsonl, curve.png, agent.npz.

    ``env`` replaces the environment that ``config.task`` names: a function that makes a
    ``gymnasium.Env``, a ready ``gymnasium.vector.VectorEnv``, or an environment of our own kind.
    Ctrl-C ends the run early, and so does an environment that fails; what was learnt is kept.
    """
    console = console or Console(quiet=config.progress == "none")
    keep_freed_memory()
    device = choose_device(config.device)
    env = _environment(config, device, env)
    config = dataclasses.replace(config, num_envs=env.num_envs)
    choice = choose_rule(config)
    net = mlp_agent_net(
        env.spec, choice.rule, config.net.torso, config.net.action_lstm, config.net.head_hidden
    )
    optimiser = adam_clip(config.optimiser.learning_rate, config.optimiser.max_abs_update)
    agent = Agent(net, choice.rule, optimiser, config.mask_episode_starts)
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
    replay = Replay(config.replay_capacity)
    episodes = EpisodeStats(env.spec, config.num_envs)
    updates = UpdateStats()
    rows: list[dict[str, Any]] = []
    interrupted, failure = False, None
    start = time.monotonic()

    with (
        (folder / "metrics.jsonl").open("w") as log,
        RunProgress(config.steps, config.progress, env.spec.success_name, console) as progress,
    ):
        try:
            for step in range(1, config.steps + 1):
                rollout, env_state, timestep = collect_rollout(
                    net,
                    state.params,
                    env,
                    env_state,
                    timestep,
                    config.rollout_length,
                    act_rng,
                    bootstrap=agent.rule if config.env.truncation == "bootstrap" else None,
                )
                check_rollout(rollout)
                replay.add(rollout)
                episodes.observe(rollout)
                if len(replay) >= config.batch_size:
                    for _ in range(config.updates_per_step):
                        batch = replay.sample(config.batch_size, sample_rng)
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
        except EnvFailure as e:
            failure = e

    save_params(folder / "agent.npz", state.params)
    if env_memory := getattr(env, "state_dict", dict)():
        save_params(folder / "env.npz", env_memory)
    getattr(env, "close", lambda: None)()
    title = f"{config.task}, {choice.name}, seed {config.seed}"
    plot_curve(folder / "curve.png", rows, title, env.spec.success_name)
    if curve := text_curve(rows):
        console.print(curve, highlight=False)
    if failure:
        raise EnvFailure(f"{failure} (what was learnt before is in {folder})") from failure
    if interrupted:
        console.print(f"Stopped by Ctrl-C; what there is stays in {folder}", highlight=False)
    else:
        console.print(f"Done. Curve: {folder / 'curve.png'}", highlight=False)
    return RunResult(folder, rows, interrupted)


def _environment(config: TrainConfig, device: torch.device, env: Any) -> Env:
    """The environment of a task, or the one that the user brought."""
    if env is None:
        return make_env(config.task, config.num_envs, device, config.env)
    from discorl.envs.gymnasium import as_env  # imported late: Gymnasium loads slowly

    return as_env(env, config.num_envs, device, config.env, f"'{config.task}'")


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
