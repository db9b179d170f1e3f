"""config.json: what a run was asked to do, with everything filled in."""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

from discorl.bounded import Unreadable, parse_json, read_bytes
from discorl.errors import DiscorlError

T = TypeVar("T")

VERSION = 1
"""Version of the file's format; the oldest files have none."""
MAX_CONFIG_BYTES = 2**20
MAX_TEXT = 4096
"""Characters of a text in it: as long as a path can be. Errors quote them."""
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
        content = parse_json(read_bytes(path, MAX_CONFIG_BYTES))
    except Unreadable:
        raise
    except FileNotFoundError:
        raise NoRun(f"{folder} is not a run: it has no config.json") from None
    except OSError as e:
        raise DiscorlError(f"cannot read {path}: {e.strerror}") from None
    except ValueError as e:
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
    _check_texts(folder, content)
    return content


def _check_texts(folder: Path, content: Any, where: str = "") -> None:
    """Raise if a text is longer than any setting can be."""
    if isinstance(content, str) and len(content) > MAX_TEXT:
        reason = f"{where:.80} should have at most {MAX_TEXT} characters, not {len(content)}"
        raise not_a_configuration(folder, DiscorlError(reason))
    parts = content.items() if isinstance(content, dict) else ()
    for name, part in enumerate(content) if isinstance(content, list) else parts:
        _check_texts(folder, part, f"{where}.{name}".lstrip("."))


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
    except DiscorlError as e:
        raise not_a_configuration(folder, e) from None


def not_a_configuration(folder: Path, error: Exception) -> DiscorlError:
    """The error for a config.json whose entries make no sense."""
    path = folder / "config.json"
    return DiscorlError(f"{path} is not the configuration of a run: {error}")


def from_json(cls: type[T], content: Any, where: str = "") -> T:
    """A dataclass from JSON; unknown entries are ignored, missing ones get their default.

    Raises if an entry is not of its field's type; ``where`` is the entry that this is.
    """
    if not isinstance(content, dict):
        raise DiscorlError(f"{where or 'it'} should be a group of settings, not {content!r:.40}")
    hints = typing.get_type_hints(cls)
    names = {f.name for f in dataclasses.fields(cls)} & content.keys()  # pyright: ignore
    return cls(**{name: _convert(hints[name], content[name], where + name) for name in names})


def _convert(hint: Any, value: Any, where: str) -> Any:
    """The value in the type that its field has; what JSON cannot express are tuples and paths."""
    is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    options = typing.get_args(hint) if is_union else (hint,)
    settings: list[Any] = [o for o in options if dataclasses.is_dataclass(o)]
    if settings and isinstance(value, dict):
        return from_json(min(settings, key=lambda cls: _misfit(cls, value)), value, f"{where}.")
    for option in options:
        if typing.get_origin(option) is dict and isinstance(value, dict):
            return value
        if typing.get_origin(option) is tuple and isinstance(value, list):
            (of_each, *_) = typing.get_args(option)
            return tuple(_convert(of_each, v, f"{where}[{i}]") for i, v in enumerate(value))
        if (found := _as(option, value)) is not _NOTHING:
            return found
    expected = " or ".join(_described(option) for option in options)
    raise DiscorlError(f"{where} should be {expected}, not {value!r:.40}")


_NOTHING = object()


def _as(option: Any, value: Any) -> Any:
    """The value as one of the plain types; ``_NOTHING`` if it is of another."""
    if typing.get_origin(option) is typing.Literal:
        return value if value in typing.get_args(option) else _NOTHING
    if option is types.NoneType:
        return None if value is None else _NOTHING
    if option is bool:
        return bool(value) if value in (False, True) else _NOTHING
    if isinstance(value, bool):
        return _NOTHING
    if option in (int, float) and isinstance(value, int | float):
        if option is int:  # from Python, 1e6 steps are as good as 1000000
            return int(value) if isinstance(value, int) or value.is_integer() else _NOTHING
        is_float = isinstance(value, float) or abs(value) <= sys.float_info.max
        return value if is_float else _NOTHING
    if option in (str, Path) and isinstance(value, str):
        return option(value)
    return _NOTHING


def _described(option: Any) -> str:
    """The name of a type for the user."""
    if typing.get_origin(option) is typing.Literal:
        return " or ".join(map(str, typing.get_args(option)))
    if typing.get_origin(option) is tuple:
        return "a list"
    if dataclasses.is_dataclass(option) or typing.get_origin(option) is dict:
        return "a group of settings"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return words.get(option, "a path" if option is Path else "null")


def _misfit(cls: Any, value: dict[str, Any]) -> int:
    """How many names only one of them has: of several kinds of settings, the closest is meant."""
    return len({f.name for f in dataclasses.fields(cls)} ^ value.keys())
