"""``discorl train``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from discorl.cli.first_use import ask_before_download
from discorl.cli.help import asks_for_help
from discorl.cli.options import Option, options_of
from discorl.cli.parse import folder_to_resume, parse, parse_changes, split_places, value_of
from discorl.errors import DiscorlError
from discorl.training.config import CheckpointConfig, EnvConfig, TrainConfig


def train_command(args: list[str]) -> int:
    """Train an agent, or resume a run; returns the exit code."""
    from discorl.training.build import PYTHON_ENV
    from discorl.training.rule_choice import read_config
    from discorl.training.train import resume, train

    if any(value_of(option, args) for option in ("--seeds", "--rules", "--jobs")):
        raise DiscorlError(
            "many runs at once are a sweep: write 'discorl sweep' for 'discorl train'"
        )
    if value_of("--steps", args) and value_of("--env-steps", args):
        raise DiscorlError("--steps and --env-steps both say how long to train: give one of them")
    if (folder := folder_to_resume(args)) is None:
        return 130 if train(parse_train(args)).interrupted else 0
    config, content = read_config(folder)
    ask_before_download(config.rule)
    env = value_of("--task", args) if content.get(PYTHON_ENV) else None
    args = args if env is None else without("--task", args)
    task, args = _task_and_options(args)
    if task not in (None, config.task):
        raise DiscorlError(f"{folder} is a run on {config.task}, not on '{task}': leave that out")
    args = [_long_name(arg, config.task) for arg in args]
    changes = parse_changes(ResumeArgs, "train", folder, config, args)
    skip_replay = changes.pop("skip_replay")
    done = resume(replace(config, **changes), env=env, skip_replay=skip_replay)
    return 130 if done.interrupted else 0


def parse_train(args: list[str]) -> TrainConfig:
    """The settings that ``discorl train ARGS`` trains with."""
    from discorl.envs.env_config import of_other_envs
    from discorl.envs.registry import is_tensor_task
    from discorl.training import presets

    given, args = _task_and_options(args)
    task = given or "catch"
    rule, preset = value_of("--rule", args) or "auto", value_of("--preset", args) or "small"
    if not asks_for_help(args):
        ask_before_download(rule)
    unused = of_other_envs() if is_tensor_task(task) else ()
    return parse(
        TrainConfig,
        usage=f"discorl train {task}",
        about=f"Train an agent on {task}. The defaults below are for this task.",
        default=presets.for_run(task, rule, preset),
        args=[_long_name(arg, task) for arg in args],
        hidden=("task", *(f"env.{name}" for name in unused)),
    )


def tasks_and_options(args: list[str]) -> tuple[list[str], list[str]]:
    """The tasks, wherever they stand, and the options."""
    tasks, args = split_places(args, _every_option())
    if (named := value_of("--task", args)) is not None:  # another way to say it
        tasks.append(named)
        args = without("--task", args)
    return tasks, args


def _task_and_options(args: list[str]) -> tuple[str | None, list[str]]:
    """The task, wherever it stands, and the options; no task if none is named."""
    tasks, args = tasks_and_options(args)
    if len(tasks) > 1:
        raise DiscorlError(f"one task at a time, but these are {len(tasks)}: {', '.join(tasks)}")
    return (tasks[0] if tasks else None), args


def _every_option() -> Iterator[Option]:
    """The options of all tasks and of resumed runs, with the names that they have for short."""
    from discorl.envs.suites import SUITES

    yield from options_of(TrainConfig)
    yield from options_of(ResumeArgs)
    yield from options_of(EnvConfig)
    for suite in SUITES:
        if suite.settings:
            for option in options_of(suite.settings):
                yield from (option, replace(option, field=f"env.suite.{option.field}"))


def without(option: str, args: list[str]) -> list[str]:
    """The arguments without an option and its value."""
    at = next(i for i, arg in enumerate(args) if arg.partition("=")[0] == option)
    return args[:at] + args[at + (1 if "=" in args[at] else 2) :]


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
