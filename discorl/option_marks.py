"""Marks at the fields of settings, which the command line reads."""

from __future__ import annotations

from typing import Annotated, TypeVar

T = TypeVar("T")


class _Common:
    """The type of the mark: it has no value of its own."""


COMMON = _Common()
Common = Annotated[T, COMMON]
"""An option that most people need: ``steps: Common[int]`` is in ``--help``, others only in
``--help-all``. Every command has room for about ten."""
