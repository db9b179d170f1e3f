"""The configuration in a run's folder: written with everything filled in, read back to resume."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

import torch

from discorl.errors import DiscorlError
from discorl.rules.store import DISCO103, embedded_rules, sha256
from discorl.training.config import TrainConfig
from discorl.training.rule_choice import RuleChoice

T = TypeVar("T")


def resolved(
    config: TrainConfig, choice: RuleChoice, device: torch.device, folder: Path, num_processes: int
) -> dict[str, Any]:
    """The configuration with everything that was left open filled in."""
    # With several processes each has a device of that type.
    used = str(device) if num_processes == 1 else device.type
    filled = dataclasses.asdict(config) | {"device": used, "out": str(folder)}
    path = choice.path
    rule = {
        "name": choice.name,
        "path": str(path.absolute()) if path else None,
        "sha256": sha256(path) if path else None,
    }
    return filled | {
        "rule": choice.name,
        "resolved_rule": rule,
        "torch": torch.__version__,
        "num_processes": num_processes,
    }


def read_settings(folder: Path, cls: type[T]) -> tuple[T, dict[str, Any]]:
    """The configuration of a run as ``cls``, and the whole of its config.json."""
    path = folder / "config.json"
    content = _content(path)
    try:
        return _build(cls, content), content
    except (KeyError, TypeError, StopIteration) as e:
        raise DiscorlError(f"{path} is not the configuration of such a run ({e!r})") from None


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DiscorlError(f"{path.parent} is not a run: it has no config.json") from None
    except (OSError, ValueError) as e:
        raise DiscorlError(f"cannot read {path}: {e}") from None
    if not isinstance(content, dict):
        raise DiscorlError(
            f"{path} is not the configuration of a run: it holds {content!r:.40}, not settings by "
            "name; put its own back, or start a new run"
        )
    return content


def read_config(folder: Path) -> tuple[TrainConfig, dict[str, Any]]:
    """The configuration of a run, and the whole of its config.json."""
    path = folder / "config.json"
    content = _content(path)
    try:
        config = _build(TrainConfig, content)
        rule = content["resolved_rule"]
        by_name = rule["path"] is None or rule["name"] in (DISCO103, *dict(embedded_rules()))
        config = dataclasses.replace(config, rule=rule["name"] if by_name else rule["path"])
    except DiscorlError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise DiscorlError(f"{path} is not the configuration of a run ({e!r})") from None
    return dataclasses.replace(config, out=folder), content


def check_same_rule(choice: RuleChoice, content: dict[str, Any]) -> None:
    """Raise if the rule file is not the one that the run began with."""
    before = content["resolved_rule"].get("sha256")
    if choice.path and before and sha256(choice.path) != before:
        raise DiscorlError(
            f"{choice.path} has changed since the run began (its sha256 was {before}): "
            "bring that file back, or start a new run"
        )


def _build(cls: type[T], content: dict[str, Any]) -> T:
    """A dataclass from JSON; unknown entries are notes, missing ones have their default."""
    hints = typing.get_type_hints(cls)
    names = {f.name for f in dataclasses.fields(cls)} & content.keys()  # pyright: ignore
    return cls(**{name: _convert(hints[name], content[name]) for name in names})


def _convert(hint: Any, value: Any) -> Any:
    """What JSON has no words for: nested settings, tuples and paths."""
    if value is None:
        return None
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    settings: list[Any] = [o for o in options if dataclasses.is_dataclass(o)]
    if settings:
        if not isinstance(value, dict):
            raise TypeError(f"{value!r:.40} where settings should be")
        return _build(min(settings, key=lambda cls: _misfit(cls, value)), value)
    if isinstance(value, list):
        return tuple(_convert(Any, v) for v in value)
    return Path(value) if Path in options else value


def _misfit(cls: Any, value: dict[str, Any]) -> int:
    """How many names only one of them has: of several kinds of settings, the closest was meant."""
    return len({f.name for f in dataclasses.fields(cls)} ^ value.keys())
