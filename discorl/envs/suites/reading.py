"""Options of a suite: a frozen dataclass with defaults, filled from names and values."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from discorl.errors import DiscorlError

T = TypeVar("T")

_WORDS = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}


def read(cls: type[T], given: Mapping[str, object], suite: str) -> T:
    """A ``cls`` with the ``given`` values; text is read as the type of the default."""
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values = {}
    for name, value in given.items():
        if name not in fields:
            raise DiscorlError(f"{suite} has no option '{name}': use {', '.join(fields)}")
        values[name] = _convert(value, fields[name].default, f"{suite}'s option '{name}'")
    return cls(**values)


def at_least(least: int, **values: int) -> None:
    """Raise unless each value, given by its name, is ``least`` or more."""
    for name, value in values.items():
        if value < least:
            raise DiscorlError(f"{name} must be at least {least}, not {value}")


def _convert(value: Any, default: Any, what: str) -> Any:
    kind = type(default)
    if isinstance(value, str) and kind is bool:
        value = _WORDS.get(value.lower(), value)
    elif isinstance(value, str) and kind in (int, float):
        with contextlib.suppress(ValueError):  # said below
            value = kind(value)
    elif kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise DiscorlError(f"{what} is {kind.__name__}, such as {default!r}, not {value!r}")
    return value
