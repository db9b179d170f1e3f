"""Settings as the command that asks for them."""

from __future__ import annotations

import json
import shlex
from functools import reduce
from typing import Any

from discorl.runs.changes import changed
from discorl.training import presets
from discorl.training.config import TrainConfig

LEFT_OUT = ("out", "progress", "rule", "preset", "task")
"""Said elsewhere in the command, or of no consequence for what is trained."""


def command_line(config: TrainConfig) -> str:
    """The ``discorl train`` that trains with these settings."""
    preset = presets.for_run(config.task, config.rule, config.preset)
    parts = ["discorl", "train", config.task, "--rule", config.rule]
    if config.preset != "small":
        parts += ["--preset", config.preset]
    names = [name for name in changed(preset, config) if name not in LEFT_OUT]
    if "env_steps" in names:
        names.remove("steps")
    for name in names:
        parts += _option(name, reduce(getattr, name.split("."), config))
    return shlex.join(parts)


def _option(name: str, value: Any) -> list[str]:
    *groups, last = name.split(".")
    last = last.strip("_").replace("_", "-")
    option = "--" + ".".join([*(g.replace("_", "-") for g in groups), last])
    if isinstance(value, bool):
        no = "--" + ".".join([*(g.replace("_", "-") for g in groups), f"no-{last}"])
        return [option if value else no]
    if isinstance(value, dict):
        return [option, json.dumps(value)]
    values = value if isinstance(value, tuple) else (value,)
    return [option, *map(str, values)]
