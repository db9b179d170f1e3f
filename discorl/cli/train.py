"""``discorl train``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import tyro

from discorl.cli.parse import folder_to_resume, parse, parse_changes, value_of
from discorl.errors import DiscorlError
from discorl.training.config import CheckpointConfig, EnvConfig, TrainConfig


def train_command(args: list[str]) -> int:
    """Train an agent, or resume a run; returns the exit code."""
    from discorl.training.rule_choice import read_config
    from discorl.training.train import resume, train

    if value_of("--steps", args) and value_of("--env-steps", args):
        raise DiscorlError("--steps and --env-steps both say how long to train: give one of them")
    if (folder := folder_to_resume(args)) is None:
        return 130 if train(parse_train(args)).interrupted else 0
    config, _ = read_config(folder)
    args = args[1:] if args[0] == config.task else args
    args = [_long_name(arg, config.task) for arg in args]
    changes = parse_changes(ResumeArgs, "train", folder, config, args)
    skip_replay = changes.pop("skip_replay")
    changes["task"] = config.task  # a run keeps its name
    env = value_of("--task", args)
    done = resume(replace(config, **changes), env=env, skip_replay=skip_replay)
    return 130 if done.interrupted else 0


def parse_train(args: list[str]) -> TrainConfig:
    """The settings that ``discorl train ARGS`` trains with."""
    from discorl.training import presets

    task = "catch"
    if args and not args[0].startswith("-"):
        task, args = args[0], args[1:]
    rule, preset = value_of("--rule", args) or "auto", value_of("--preset", args) or "small"
    default = presets.for_run(task, rule, preset)
    config = parse(
        TrainConfig,
        prog=f"discorl train {task}",
        description=f"Train an agent on {task}. The defaults below are for this task.",
        default=default,
        args=[_long_name(arg, task) for arg in args],
        config=(tyro.conf.AvoidSubcommands,),  # the suite's options are those of the task's own
    )
    if config.task != task:
        raise DiscorlError(f"name the task first, as in 'discorl train {config.task}'")
    return config


@dataclass(frozen=True)
class ResumedOptimiser:
    """The optimiser; its other settings stay as they were."""

    learning_rate: float
    """Step size."""


@dataclass(frozen=True)
class ResumedEnv:
    """Rewards of environments that are not on tensors. A new scale empties the replay. The names
    also work without 'env.'."""

    reward_scale: float
    """Multiply every reward by this. Reported episode returns are unscaled."""
    reward_clip: float | None
    """Clip rewards to plus or minus this, after scaling. Reported episode returns are unclipped."""


@dataclass(frozen=True)
class ResumeArgs:
    """What you can change when you resume a run."""

    resume: Path
    """Folder of the run."""
    steps: int
    """Total training steps of the run; raise this to train for longer."""
    env_steps: int | None
    """The same in environment steps, instead of --steps."""
    checkpoint: CheckpointConfig
    threads: int | Literal["auto"]
    """How many threads torch uses; auto uses as many as make it faster."""
    log: str
    """Where metrics go besides metrics.jsonl: tensorboard, wandb, or both (tensorboard,wandb)."""
    timeout_minutes: float
    """How long to wait for another process or an environment of --workers async."""
    progress: Literal["auto", "bar", "lines", "none"]
    """How to show progress; auto draws a bar on a terminal and prints lines elsewhere."""
    stop_at_return: float | None
    """End the run when its mean return reaches this."""
    max_minutes: float | None
    """End the run after so many minutes, with those before it was resumed."""
    max_loss: float
    """Stop the run if the loss is NaN or larger than this, and keep the state from before."""
    optimiser: ResumedOptimiser
    env: ResumedEnv
    task: str
    """The environment, if it was given from Python: a task, such as MODULE:FUNCTION of yours."""
    skip_replay: bool = False
    """Keep the newest agent, even of a run that diverged, but start with an empty replay."""


def _long_name(arg: str, task: str) -> str:
    """Environment settings also work without their prefix: --truncation, --sticky."""
    name, *value = arg.split("=", 1)
    if not name.startswith("--"):
        return arg
    short = name.removeprefix("--").removeprefix("env.").removeprefix("suite.")
    plain = short.removeprefix("no-").replace("-", "_")
    if plain in {f.name for f in dataclasses.fields(EnvConfig)}:
        name = f"--env.{short}"
    elif plain not in {f.name for f in dataclasses.fields(TrainConfig)} and _is_of_suite(
        plain, task
    ):
        name = f"--env.suite.{short}"
    return "=".join([name, *value])


def _is_of_suite(option: str, task: str) -> bool:
    """Whether it is an option of the task's suite; raises if only other suites have it."""
    from discorl.envs import suites

    having = [s for s in suites.SUITES if s.settings and option in s.settings.__dataclass_fields__]
    own = suites.find(task)
    if not having or own in having:
        return bool(having)
    titles = [s.title for s in having]
    who = " and ".join(filter(None, [", ".join(titles[:-1]), titles[-1]]))
    raise DiscorlError(
        f"--{option.replace('_', '-')} is an option of {who}, but the task is '{task}': remove "
        f"it, or see 'discorl train {task} --help'"
    )
