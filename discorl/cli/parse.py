"""Arguments to dataclasses, by tyro."""

from __future__ import annotations

import contextlib
import io
import itertools
import sys
from typing import Any, TypeVar

import tyro

from discorl.errors import DiscorlError

T = TypeVar("T")


def parse(cls: type[T], **kwargs: Any) -> T:
    """``tyro.cli``, but an error of ours stays one: tyro would draw a box around it and exit."""
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
    """The value that ``args`` give an option, which others take their defaults from."""
    for arg, after in itertools.zip_longest(args, args[1:]):
        if arg == option:
            return after
        if arg.startswith(f"{option}="):
            return arg.partition("=")[2]
    return None
