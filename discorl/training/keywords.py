"""Settings as keywords: ``train("gym:CartPole-v1", rule="disco103", env_steps=200_000)``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

from discorl.errors import DiscorlError
from discorl.runs.config_file import from_json
from discorl.suggestions import did_you_mean
from discorl.training import presets
from discorl.training.config import EnvConfig, TrainConfig


def settings_of(start: TrainConfig | str, changes: Mapping[str, Any]) -> TrainConfig:
    """A task's preset, or ready settings, with changes of fields by name.

    Groups of settings are dataclasses, or mappings of what changes in them:
    ``optimiser={"learning_rate": 1e-3}``. Those of the environment need no group.
    """
    if {"steps", "env_steps"} <= changes.keys():
        raise DiscorlError("steps and env_steps both say how long to train: give one of them")
    if not isinstance(changes.get("rule", ""), str | PathLike):
        raise DiscorlError(
            "rule is a name or the path of a rule file, such as rule='cmpo'; its settings are "
            "keywords of their own, such as cmpo={'strength': 2}"
        )
    if isinstance(start, str):
        rule, preset = (str(changes.get(k, v)) for k, v in (("rule", "auto"), ("preset", "small")))
        start = presets.for_run(start, rule, preset)
    if not isinstance(start, TrainConfig):
        raise DiscorlError(
            "train takes the name of a task, such as 'gym:CartPole-v1', or a TrainConfig, not "
            f"{start!r:.40}; an environment of yours is train('a-name', env=make), where make() "
            "returns it"
        )
    if not changes:
        return start
    names = {f.name for f in dataclasses.fields(EnvConfig)} - start.__dataclass_fields__.keys()
    of_env = {name: x for name, x in changes.items() if name in names}
    if of_env:  # env= of train is the environment itself, so its settings need no group
        changes = {name: x for name, x in changes.items() if name not in names} | {"env": of_env}
    # As config.json would hold it, so that there is one place where values are checked.
    merged = _merged(dataclasses.asdict(start), changes)
    return from_json(TrainConfig, json.loads(json.dumps(merged, default=_plain)))


def _plain(value: Any) -> Any:
    """Paths as text, and NumPy's numbers as Python's."""
    if isinstance(value, PathLike):
        return fspath(value)
    if hasattr(value, "item"):
        return value.item()
    raise DiscorlError(f"{value!r:.60} cannot be a setting: use numbers, texts and paths")


def _merged(old: dict[str, Any], changes: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """The settings with changes, of which each must be one of them."""
    for name in changes:
        if name not in old:
            known = f": {where.rstrip('.') or 'train'} has {', '.join(old)}"
            homes = [group for group, x in old.items() if isinstance(x, dict) and name in x]
            grouped = "".join(f"; did you mean {group}={{'{name}': ...}}?" for group in homes[:1])
            meant = did_you_mean(str(name), old) or grouped or known
            raise DiscorlError(f"there is no setting '{where}{name}'{meant}")
    merged = dict(old)
    for name, value in changes.items():
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            merged[name] = dataclasses.asdict(value)
        elif isinstance(value, Mapping) and isinstance(old[name], dict) and name != "kwargs":
            merged[name] = _merged(old[name], value, f"{where}{name}.")
        else:
            merged[name] = value
    return merged
