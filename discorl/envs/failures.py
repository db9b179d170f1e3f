"""What to say of an exception in code of the user's: one line, with the place in that code."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path

OURS = Path(__file__).parents[1]
LIBRARIES = {"site-packages", "dist-packages"}
"""Folders of packages that were installed."""
STANDARD = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})


def one_line(error: BaseException) -> str:
    """What an exception says, and where in the user's code it came from, if it did."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # its own __str__ fails
        text = ""
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    place = place_of(error)
    return f"{said} ({place})" if place else said


def place_of(error: BaseException) -> str:
    """The innermost line of the user's own code, as FILE:LINE, in FUNCTION; '' if there is none."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        for frame in reversed(traceback.extract_tb(cause.__traceback__)):
            if not is_library(frame.filename):
                return f"{_short(frame.filename)}:{frame.lineno}, in {frame.name}"
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
    return ""


def is_library(file: str) -> bool:
    """Whether a file of code is Python's, ours, or of a package that was installed."""
    path = Path(file)
    if not path.is_file():  # such as <frozen importlib>
        return True
    if LIBRARIES & set(path.parts) or path.is_relative_to(OURS):
        return True
    return any(path.is_relative_to(folder) for folder in STANDARD)


def _short(file: str) -> str:
    """Relative to the current folder, if it is in there."""
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative
