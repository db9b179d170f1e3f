"""``discorl train``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

import tyro

from discorl.cli.parse import parse, value_of
from discorl.errors import DiscorlError
from discorl.training.config import CheckpointConfig, EnvConfig, TrainConfig


def train_command(args: list[str]) -> int:
    """Train an agent, or go on with a run; returns the exit code."""
    from discorl.training.train import train

    if any(a == "--resume" or a.startswith("--resume=") for a in args):
        return _resume(args)
    return 130 if train(parse_train(args)).interrupted else 0


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
        description=f"Train an agent on {task}. The defaults below are those of this task.",
        default=default,
        args=[_long_name(arg, task) for arg in args],
        config=(tyro.conf.AvoidSubcommands,),  # of the suites' options, the task's own are meant
    )
    if config.task != task:
        raise DiscorlError(f"name the task first, as in 'discorl train {config.task}'")
    return config


@dataclass(frozen=True)
class ResumeArgs:
    """Go on with a run from its last checkpoint, with its own settings but for these."""

    resume: Path
    """Folder of the run."""
    steps: int
    """Training steps of the whole run; raise it to train for longer."""
    checkpoint: CheckpointConfig
    log: str
    """Where metrics go besides metrics.jsonl: tensorboard, wandb, or both with a comma."""
    progress: Literal["auto", "bar", "lines", "none"]
    """How progress is shown; auto draws a bar on a terminal and prints lines elsewhere."""


def _resume(args: list[str]) -> int:
    from discorl.training.run_config import read_config
    from discorl.training.train import resume

    i = next(i for i, a in enumerate(args) if a.startswith("--resume"))
    given = args[i].partition("=")[2] or (args[i + 1] if i + 1 < len(args) else "")
    if not given or given.startswith("-"):
        raise DiscorlError("--resume needs the folder of a run, as in --resume runs/catch-1")
    config, _ = read_config(Path(given))
    if args[0] == config.task:
        args = args[1:]
    kept = {f.name: getattr(config, f.name) for f in fields(ResumeArgs) if f.name != "resume"}
    changes = parse(
        ResumeArgs,
        prog="discorl train --resume RUN",
        description="Go on with a run. Its other settings stay as they were.",
        default=ResumeArgs(Path(given), **kept),
        args=args,
    )
    changed = {name: getattr(changes, name) for name in kept}
    return 130 if resume(replace(config, **changed)).interrupted else 0


def _long_name(arg: str, task: str) -> str:
    """Settings of the environment go without their prefix too: --truncation, --sticky."""
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
    """Whether it is an option of the task's suite; raises if it is one of others only."""
    from discorl.envs import suites

    having = [s for s in suites.SUITES if s.settings and option in s.settings.__dataclass_fields__]
    own = suites.find(task)
    if not having or own in having:
        return bool(having)
    titles = [s.title for s in having]
    who = " and ".join(filter(None, [", ".join(titles[:-1]), titles[-1]]))
    raise DiscorlError(
        f"--{option.replace('_', '-')} is an option of {who}, but the task is '{task}': leave it "
        f"away, or see 'discorl train {task} --help'"
    )
