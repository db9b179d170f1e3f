"""Training one agent: act, store, sample, learn."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from discorl.agents.acting import act, check_rollout
from discorl.agents.burn_in import without_burn_in
from discorl.agents.update import update_agent
from discorl.errors import DiscorlError, EnvFailure
from discorl.runs import distributed
from discorl.runs.checkpoint import CheckpointFolder
from discorl.runs.distributed import Ranks
from discorl.runs.files import held, new_run_folder, save_params, write_json
from discorl.runs.interrupt import StopRequest
from discorl.training.config import TrainConfig
from discorl.training.curve import plot_curve, text_curve
from discorl.training.divergence import LossGuard, explain
from discorl.training.outputs import Outputs
from discorl.training.run_config import check_same_rule, read_config, resolved
from discorl.training.run_setup import TrainRun, set_up
from discorl.training.state import RunState, new_state, restore_state


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
    ``resume`` goes on with it. Started by torchrun, the processes share the environments and the
    batch.
    """
    ranks = distributed.start(config.device)
    try:
        if ranks.restarts and distributed.was_begun(config.out, ranks):
            begun = _first_does(ranks, lambda: read_config(_out(config))[1])
            return _resume(config, begun, ranks, console, env)
        run = set_up(config, ranks, console, env)
        config = run.config
        name = f"{config.task.replace(':', '-')}-{run.choice.name}"
        folder = _first_does(ranks, lambda: str(new_run_folder(config.out, name)))
        settings = resolved(config, run.choice, ranks.device, Path(folder), ranks.size)
        if run.choice.note:
            run.console.print(run.choice.note, highlight=False)
        run.console.print(
            f"Training on {config.task} with {run.choice.name} on {ranks.device}, into {folder}",
            highlight=False,
        )
        return _train(run, new_state(config, run.agent, run.env, ranks), Path(folder), settings)
    finally:
        distributed.stop()


def resume(config: TrainConfig, console: Console | None = None, env: Any = None) -> RunResult:
    """Go on with the run in ``config.out`` from its last checkpoint; ``env`` as for ``train``.

    ``config`` is what ``read_config`` gave, with other ``steps``, ``checkpoint``, ``log`` or
    ``progress`` if wanted. With environments on tensors the result is equal, to the last bit, to
    that of a run that was never interrupted. Others, such as Gymnasium's, begin new episodes.
    """
    content = read_config(_out(config))[1]
    ranks = distributed.start(config.device)
    try:
        return _resume(config, content, ranks, console, env)
    finally:
        distributed.stop()


def _resume(
    config: TrainConfig, begun: dict[str, Any], ranks: Ranks, console: Console | None, env: Any
) -> RunResult:
    """``resume`` among the other processes; ``begun`` is the run's config.json."""
    folder = _out(config)
    _check_same_course(folder, begun, ranks)
    run = set_up(config, ranks, console, env)
    check_same_rule(run.choice, begun)
    state = new_state(config, run.agent, run.env, ranks)
    _restore_latest(run, state)
    if state.step > config.steps:
        raise DiscorlError(
            f"{folder} is at step {state.step} already; give --steps of at least that"
        )
    run.console.print(f"Going on with {folder} after step {state.step}", highlight=False)
    changed = {name: getattr(config, name) for name in ("steps", "log", "progress")}
    changed["checkpoint"] = dataclasses.asdict(config.checkpoint)
    settings = begun | changed | {"out": str(folder)}
    return _train(run, state, folder, settings)


def _check_same_course(folder: Path, begun: dict[str, Any], ranks: Ranks) -> None:
    """Raise where going on is impossible, warn where it is not exact."""
    if (size := begun.get("num_processes", 1)) != ranks.size:
        raise DiscorlError(
            f"{folder} is a run of {size} process(es), not of {ranks.size}: "
            f"use torchrun --nproc-per-node {size}"
        )
    intervals = begun["checkpoint"]
    if (
        intervals["every_steps"] is None
        and intervals["every_minutes"] is None
        and not (folder / "checkpoints").exists()
    ):
        raise DiscorlError(f"{folder} was run without checkpoints: start it anew")
    if begun["torch"] != torch.__version__:
        warnings.warn(
            f"the run began with torch {begun['torch']}, this is {torch.__version__}: "
            "the last bits may differ",
            stacklevel=2,
        )


def _restore_latest(run: TrainRun, state: RunState) -> None:
    """Set the state to the newest checkpoint's; a run that has none yet begins at step 0."""
    checkpoints = CheckpointFolder(_out(run.config) / "checkpoints", run.config.checkpoint.keep)
    found = checkpoints.latest() if run.ranks.is_first else None
    if distributed.any_of(found is not None) == (False,):
        return
    content = found.content if found else None
    if not restore_state(state, content, run.agent, run.env, run.config.rollout_length):
        run.console.print(
            "These environments cannot be saved: they begin new episodes. All else goes on exactly",
            highlight=False,
        )


def _train(run: TrainRun, state: RunState, folder: Path, settings: dict[str, Any]) -> RunResult:
    """The loop."""
    config, env, agent = run.config, run.env, run.agent
    guard, failure = LossGuard(config.max_loss), None
    num_fresh = run.ranks.share(config.num_fresh)
    with (
        _begun(folder, settings) if run.ranks.is_first else nullcontext(),
        StopRequest(patient=run.ranks.size > 1) as stop,
        Outputs(run.config, run.ranks, env.spec, folder, settings, state, run.console) as outputs,
    ):
        try:
            while state.step < config.steps:
                rollout, after = act(
                    agent.net,
                    state.agent.params,
                    env,
                    state.acting,
                    config.rollout_length,
                    bootstrap=agent.rule if config.env.truncation == "bootstrap" else None,
                )
                _check_losses(guard, run, state, outputs)  # of the step before
                check_rollout(rollout)
                state.acting = after
                state.replay.add(rollout)
                state.episodes.observe(rollout)
                state.step += 1
                log_now = state.step % config.log_every == 0

                if len(state.replay) >= run.batch_size:
                    guard.begin(state.step, state.agent)
                    for i in range(config.updates_per_step):
                        batch = state.replay.sample(run.batch_size, state.sample_rng, num_fresh)
                        state.agent, info = update_agent(
                            agent, run.rule_params, state.agent, batch, across=run.across
                        )
                        guard.watch(info)
                        state.updates.observe(info)
                        if log_now and i == config.updates_per_step - 1:
                            state.updates.diagnose(
                                agent.rule.diagnostics(
                                    info.predictions,
                                    info.targets,
                                    without_burn_in(batch, agent.burn_in),
                                )
                            )

                if log_now:
                    _check_losses(guard, run, state, outputs)
                    outputs.log(state)
                is_last, is_due = distributed.any_of(
                    state.step == config.steps or stop.requested, outputs.checkpoint_is_due(state)
                )
                if is_last or is_due:
                    _check_losses(guard, run, state, outputs)
                    outputs.save_checkpoint(state)
                if is_last:
                    break
        except KeyboardInterrupt:
            stop.reason = stop.reason or "Ctrl-C"
        except EnvFailure as e:
            failure = e
            if run.ranks.size == 1:  # the others would not take part in it
                _check_losses(guard, run, state, outputs)
                outputs.save_checkpoint(state)
        interrupted = state.step < config.steps
        if not interrupted and state.step % config.log_every:
            outputs.log(state)

    if run.ranks.is_first:
        reason = None
        if interrupted:
            reason = stop.reason or ("the environment" if failure else "another process")
        _finish(run, state, folder, outputs.rows, reason)
    getattr(env, "close", lambda: None)()
    if failure:
        raise EnvFailure(f"{failure} (what was learnt before is in {folder})") from failure
    return RunResult(folder, outputs.rows, interrupted)


def _check_losses(guard: LossGuard, run: TrainRun, state: RunState, outputs: Outputs) -> None:
    """If learning has gone wrong, keep the agent from before and say why."""
    found = guard.check()
    if found is None:
        return
    said = explain(found, guard, run.config.optimiser.learning_rate)
    state.agent = found.last_good
    state.updates.clear()
    path = outputs.save_checkpoint(state)
    if run.ranks.is_first:
        _save_agent(state, outputs.folder)
    kept = f"{path} and " if path else ""
    raise DiscorlError(f"{said}. The agent before that step is in {kept}agent.npz")


def _finish(
    run: TrainRun, state: RunState, folder: Path, rows: list[dict[str, Any]], reason: str | None
) -> None:
    """The agent, the curve, and a last word."""
    _save_agent(state, folder)
    config, console = run.config, run.console
    title = f"{config.task}, {run.choice.name}, seed {config.seed}"
    plot_curve(folder / "curve.png", rows, title, run.env.spec.success_name)
    if curve := text_curve(rows):
        console.print(curve, highlight=False)
    if reason:
        console.print(f"Stopped by {reason}; what there is stays in {folder}", highlight=False)
        if (folder / "checkpoints").exists():
            console.print(f"Go on with: discorl train --resume {folder}", highlight=False)
    elif state.step == config.steps:
        console.print(f"Done. Curve: {folder / 'curve.png'}", highlight=False)


def _save_agent(state: RunState, folder: Path) -> None:
    """The agent, and what its environments have learnt about their observations."""
    save_params(folder / "agent.npz", state.agent.params)
    if env_memory := state.env_memory.state_dict():
        save_params(folder / "env.npz", env_memory)


@contextmanager
def _begun(folder: Path, settings: dict[str, Any]) -> Iterator[None]:
    """Keep the folder to this process, and say in it what is run."""
    with held(folder):
        write_json(folder / "config.json", settings)
        yield


def _out(config: TrainConfig) -> Path:
    assert config.out is not None
    return config.out


def _first_does(ranks: Ranks, action: Any) -> Any:
    """What ``action`` returns in the first process, in all of them."""
    return distributed.broadcast(action() if ranks.is_first else None)
