"""config.json: what a run was asked to do, with everything filled in."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

from discorl.errors import DiscorlError

T = TypeVar("T")

VERSION = 1
"""Version of the file's format; the oldest files have none."""
COMMANDS = {
    "train": "resume it with 'discorl train --resume {0}'",
    "discover": "resume it with 'discorl discover --resume {0}', or train an agent with its rule: "
    "'discorl train --rule {0}/rule.npz'",
}
"""Kinds of runs, by the command that starts them, and what can be done with one."""


class NoRun(DiscorlError):  # noqa: N818 - reads as a sentence where it is caught
    """The folder holds no run, or one that never started."""


def read_config_file(folder: Path) -> dict[str, Any]:
    """The config.json of a run, whatever its kind."""
    path = folder / "config.json"
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise NoRun(f"{folder} is not a run: it has no config.json") from None
    except OSError as e:
        raise DiscorlError(f"cannot read {path}: {e.strerror}") from None
    except (ValueError, RecursionError) as e:
        raise DiscorlError(f"cannot read {path}: it is not JSON ({e!s:.80})") from None
    if not isinstance(content, dict):
        raise DiscorlError(
            f"{path} is not the configuration of a run: it holds {content!r:.40}, not named "
            "settings; restore the original, or start a new run"
        )
    if (version := content.get("version", VERSION)) != VERSION:
        raise DiscorlError(
            f"{path} has format version {version!r:.20}, but this discorl reads {VERSION}: "
            "use the version of discorl that wrote it"
        )
    return content


def kind_of(content: dict[str, Any]) -> str | None:
    """The kind of run that a config.json describes; None if it does not say."""
    return content.get("kind") or ("train" if "task" in content else None)


def check_kind(folder: Path, content: dict[str, Any], kind: str) -> None:
    """Raise if the run is of another kind, naming the command for it."""
    found = kind_of(content)
    if found not in (None, kind):
        todo = COMMANDS.get(str(found), "use the version of discorl that wrote it").format(folder)
        raise DiscorlError(f"{folder} is a run of 'discorl {found!s:.20}': {todo}")


def read_settings(folder: Path | str, cls: type[T], kind: str) -> tuple[T, dict[str, Any]]:
    """The configuration of a run of some kind as ``cls``, and the whole of its config.json."""
    folder = Path(folder)
    content = read_config_file(folder)
    check_kind(folder, content, kind)
    try:
        return from_json(cls, content | {"out": str(folder)}), content
    except DiscorlError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise not_a_configuration(folder, e) from None


def not_a_configuration(folder: Path, error: Exception) -> DiscorlError:
    """The error for a config.json whose entries make no sense."""
    path = folder / "config.json"
    return DiscorlError(f"{path} is not the configuration of a run ({error!r})")


def from_json(cls: type[T], content: dict[str, Any]) -> T:
    """A dataclass from JSON; unknown entries are ignored, missing ones get their default."""
    hints = typing.get_type_hints(cls)
    names = {f.name for f in dataclasses.fields(cls)} & content.keys()  # pyright: ignore
    return cls(**{name: _convert(hints[name], content[name]) for name in names})


def _convert(hint: Any, value: Any) -> Any:
    """What JSON cannot express: nested settings, tuples and paths."""
    if value is None:
        return None
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    settings: list[Any] = [o for o in options if dataclasses.is_dataclass(o)]
    if settings:
        if not isinstance(value, dict):
            raise TypeError(f"{value!r:.40} where settings should be")
        return from_json(min(settings, key=lambda cls: _misfit(cls, value)), value)
    if isinstance(value, list):
        return tuple(_convert(Any, v) for v in value)
    return Path(value) if Path in options else value


def _misfit(cls: Any, value: dict[str, Any]) -> int:
    """How many names only one of them has: of several kinds of settings, the closest is meant."""
    return len({f.name for f in dataclasses.fields(cls)} ^ value.keys())
