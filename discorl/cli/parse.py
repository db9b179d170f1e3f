"""Arguments to dataclasses, by tyro."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import sys
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import tyro

from discorl.cli.values import VALUES
from discorl.errors import DiscorlError

T = TypeVar("T")


def parse(cls: type[T], **kwargs: Any) -> T:
    """``tyro.cli``, but our own errors pass through: tyro would draw a box around them and exit."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(cls, registry=VALUES, **kwargs)
    except SystemExit as stop:
        cause: BaseException | None = stop
        while (cause := cause.__context__) is not None:
            if isinstance(cause, DiscorlError):
                raise cause from None
        sys.stderr.write(said.getvalue())
        raise


def value_of(option: str, args: list[str]) -> str | None:
    """The value that ``args`` give for an option that sets the defaults of others."""
    for arg, after in itertools.zip_longest(args, args[1:]):
        if arg == option:
            return after
        if arg.startswith(f"{option}="):
            return arg.partition("=")[2]
    return None


def folder_to_resume(args: list[str]) -> Path | None:
    """The folder that ``--resume`` names; None if there is nothing to resume."""
    if not any(a == "--resume" or a.startswith("--resume=") for a in args):
        return None
    given = value_of("--resume", args)
    if not given or given.startswith("-"):
        raise DiscorlError("--resume needs a run folder, as in --resume runs/catch-1")
    return Path(given)


def parse_changes(cls: Any, command: str, folder: Path, config: Any, args: list[str]) -> Any:
    """The settings to resume a run with: the fields of ``cls``, by default as in ``config``.

    Fields of ``cls`` that are settings themselves may be a selection of those in ``config``; what
    ``config`` does not have is returned as it is.
    """
    _refuse_other_options(cls, type(config), args)
    hints: dict[str, Any] = get_type_hints(cls)
    parts = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    names = [f.name for f in dataclasses.fields(cls) if f.name != "resume"]
    now = {name: getattr(config, name) for name in names if hasattr(config, name)}
    selected = {name: _selection(part, now[name]) for name, part in parts.items()}
    parsed = parse(
        cls,
        prog=f"discorl {command} --resume RUN",
        description="Resume a run from its last checkpoint. All other settings stay as they were.",
        default=cls(folder, **now | selected),
        args=args,
    )
    asked = {name: getattr(parsed, name) for name in names}
    return asked | {k: dataclasses.replace(now[k], **vars(asked[k])) for k in parts}


def _selection(cls: Any, settings: Any) -> Any:
    """The settings that ``cls`` has, too."""
    return cls(**{f.name: getattr(settings, f.name) for f in dataclasses.fields(cls)})


def _refuse_other_options(cls: Any, whole: Any, args: list[str]) -> None:
    """Raise if ``args`` have an option of ``whole`` that ``cls`` lacks."""
    offered = option_names(cls)
    for arg in args:
        name = arg.partition("=")[0].replace("_", "-")
        plain = name.replace("--no-", "--").replace(".no-", ".")
        group = plain.partition(".")[0]
        if plain not in offered and {plain, group} & option_names(whole):
            can = ", ".join(sorted(offered - {"--resume"}))
            raise DiscorlError(f"{name} cannot change when a run is resumed; what can: {can}")


def option_names(cls: Any, prefix: str = "--") -> set[str]:
    """The options that stand for the fields of ``cls``, and the groups that they are in."""
    found = set()
    for name, hint in get_type_hints(cls).items():
        option = prefix + name.strip("_").replace("_", "-")
        if dataclasses.is_dataclass(hint):
            found |= option_names(hint, f"{option}.")
        found.add(option)
    return found
