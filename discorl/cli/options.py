"""The options of a command, read from a dataclass or from the arguments of a function."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro

from discorl.option_marks import COMMON

REQUIRED = inspect.Parameter.empty
"""The default of an option without one."""


@dataclasses.dataclass(frozen=True)
class Option:
    """One option, or an argument that has its place instead of a name."""

    field: str
    """Where its value goes: ``returns.lambda_``."""
    hint: Any
    """Its type, without marks."""
    text: str
    """What it does."""
    default: Any
    is_common: bool = False
    """Whether it is among the few that everyone sees first."""
    is_positional: bool = False

    @property
    def name(self) -> str:
        """As it is typed: ``--returns.lambda``."""
        return "--" + typed(self.field)

    @property
    def group(self) -> str:
        """The settings that it is one of: ``returns``; empty if it stands alone."""
        return self.field.rpartition(".")[0]

    @property
    def is_flag(self) -> bool:
        """Whether it takes no value: ``--compile``, ``--no-compile``."""
        return self.hint is bool

    @property
    def names(self) -> tuple[str, ...]:
        """Every form of it."""
        group, dot, last = self.name.removeprefix("--").rpartition(".")
        return (self.name, f"--{group}{dot}no-{last}") if self.is_flag else (self.name,)

    @property
    def takes_many(self) -> bool:
        """Whether several values may follow it."""
        return any(get_origin(part) is tuple for part in _parts(self.hint))

    @property
    def takes_numbers(self) -> bool:
        """Whether nothing but numbers may follow it."""
        inner = [a for part in _parts(self.hint) for a in get_args(part) if a is not Ellipsis]
        return self.takes_many and bool(inner) and set(inner) <= {int, float}


@dataclasses.dataclass(frozen=True)
class Group:
    """Settings that belong together, and what they are about."""

    name: str
    text: str
    options: tuple[Option, ...]


def typed(field: str) -> str:
    """The name of a field as it is typed on a command line."""
    return re.sub(r"_(?=\.|$)", "", field).replace("_", "-")


def groups_of(settings: Any, default: Any = None, hidden: Iterable[str] = ()) -> list[Group]:
    """The options that stand for a dataclass or a function, those without a group first.

    ``default`` is the instance whose values are the defaults; ``hidden`` are fields, or whole
    groups, that are not offered.
    """
    if dataclasses.is_dataclass(settings):
        found = list(_of_dataclass(settings, default, "", tuple(hidden)))
    else:
        found = [_of_function(settings)]
    return [group for group in found if group.options]


def options_of(settings: Any, default: Any = None, hidden: Iterable[str] = ()) -> list[Option]:
    """All options of ``groups_of``."""
    return [option for group in groups_of(settings, default, hidden) for option in group.options]


def metavar(hint: Any) -> str:
    """What stands for the value of an option in its help: ``INT``, ``small|paper``."""
    if get_origin(hint) is tuple:
        return f"{metavar(get_args(hint)[0])} ..."
    if get_origin(hint) is dict:
        return "JSON"
    if get_origin(hint) is Literal:
        return "|".join(map(str, get_args(hint)))
    if len(parts := _parts(hint)) > 1:
        return "|".join(map(metavar, parts))
    names = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH", type(None): "None"}
    return names.get(hint, "True|False" if hint is bool else "VALUE")


def shown_default(option: Option) -> str:
    """The default in words that could be typed."""
    value = option.default
    if isinstance(value, bool) and option.is_flag:
        return "on" if value else "off"
    if isinstance(value, dict):
        return json.dumps(value) if value else "none"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    return "none" if value == "" else str(value)


def _of_dataclass(cls: Any, default: Any, prefix: str, hidden: tuple[str, ...]) -> Iterator[Group]:
    hints = get_type_hints(cls, include_extras=True)
    texts = _field_texts(cls)
    own, parts = [], []
    for field in dataclasses.fields(cls):
        name = prefix + field.name
        if name in hidden:
            continue
        hint, marks = _without_marks(hints[field.name])
        value = getattr(default, field.name, REQUIRED)
        if dataclasses.is_dataclass(hint) or dataclasses.is_dataclass(value):
            whose = type(value) if dataclasses.is_dataclass(value) else hint
            parts.append(_of_dataclass(whose, value, f"{name}.", hidden))
        elif not any(dataclasses.is_dataclass(part) for part in _parts(hint)):
            own.append(Option(name, hint, texts.get(field.name, ""), value, COMMON in marks))
    yield Group(prefix.rstrip("."), _one_line(inspect.getdoc(cls) or ""), tuple(own))
    for part in parts:
        yield from part


def _of_function(function: Callable[..., Any]) -> Group:
    hints = get_type_hints(function, include_extras=True)
    about, _, rest = (inspect.getdoc(function) or "").partition("Args:")
    texts = dict(re.findall(r"^    (\w+): (.*(?:\n     .*)*)", rest, re.MULTILINE))
    options = []
    for name, parameter in inspect.signature(function).parameters.items():
        hint, marks = _without_marks(hints[name])
        is_positional = tyro.conf.Positional in marks
        text = _one_line(texts.get(name, ""))
        options.append(Option(name, hint, text, parameter.default, COMMON in marks, is_positional))
    return Group("", _one_line(about), tuple(options))


def _field_texts(cls: type) -> dict[str, str]:
    """The texts under the fields of a dataclass and of those that it inherits from."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        (definition,) = ast.parse(dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for node, after in zip(definition.body, definition.body[1:]):
            if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
                continue
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                texts[node.target.id] = _one_line(str(after.value.value))
    return texts


def _without_marks(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type and what was annotated to it."""
    if get_origin(hint) is not Annotated:
        return hint, ()
    inner, *marks = get_args(hint)
    return inner, tuple(marks)


def _parts(hint: Any) -> tuple[Any, ...]:
    """The types that a union consists of."""
    is_union = isinstance(hint, types.UnionType) or get_origin(hint) is Union
    return tuple(_without_marks(h)[0] for h in get_args(hint)) if is_union else (hint,)


def _one_line(text: str) -> str:
    """A text without its line breaks, which were those of the source."""
    return " ".join(text.split())
