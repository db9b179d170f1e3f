"""Arguments to dataclasses, by tyro."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import sys
from pathlib import Path
from typing import Any, TypeVar

import tyro

from discorl.errors import DiscorlError

T = TypeVar("T")


def parse(cls: type[T], **kwargs: Any) -> T:
    """``tyro.cli``, but our own errors pass through: tyro would draw a box around them and exit."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(cls, **kwargs)
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
    """The settings to resume a run with: the fields of ``cls``, by default as in ``config``."""
    names = [f.name for f in dataclasses.fields(cls) if f.name != "resume"]
    parsed = parse(
        cls,
        prog=f"discorl {command} --resume RUN",
        description="Resume a run from its last checkpoint. All other settings stay as they were.",
        default=cls(folder, **{name: getattr(config, name) for name in names}),
        args=args,
    )
    return {name: getattr(parsed, name) for name in names}
