"""Environments that end the process: while one is called, that is a failure like any other."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from discorl.errors import DiscorlError

T = TypeVar("T")

PASS = (DiscorlError, KeyboardInterrupt)
"""What is not an environment's failure, or says already whose it is: Ctrl-C is the user's.
Whatever else an environment raises is one, ``SystemExit`` and other BaseExceptions included."""

_exit = os._exit
_inside: set[tuple[int, int]] = set()
"""Process and thread of each call that is under way."""


def call_without_exit(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function for which ``os._exit`` raises SystemExit instead of ending the process.

    It would end the whole run, and nothing that was learnt would be saved.
    """
    here = (os.getpid(), threading.get_ident())
    _inside.add(here)
    os._exit = _refuse
    try:
        return function(*args, **kwargs)
    finally:
        _inside.discard(here)
        if not _inside:
            os._exit = _exit


def _refuse(status: int) -> NoReturn:
    # Other threads end the process if they want to, and so do processes that an environment forks.
    if (os.getpid(), threading.get_ident()) in _inside:
        raise SystemExit(status)
    _exit(status)
