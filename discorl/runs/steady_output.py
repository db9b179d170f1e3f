"""Output that nobody can take any more ends nothing: it goes quiet, and the end says so."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO


class SteadyStream:
    """A text stream that drops what cannot be written, from the first failure on."""

    def __init__(self, stream: TextIO | None) -> None:
        # None: it was closed from the start. The null device takes its number, which the next file
        # that is opened would get otherwise, and with it whatever is printed.
        self._stream = stream or open(os.devnull, "w")  # noqa: SIM115
        self.loss: str | None = None
        """Since when what is written has been lost, and why; None if nothing was."""
        self.is_unread = False
        """Whether it was lost because its reader has gone, as ``head`` does."""

    def write(self, text: str) -> int:
        """Write, or drop."""
        if self.loss is None:
            with self._noticing():
                self._stream.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several, or drop them."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Pass on what was written."""
        if self.loss is None:
            with self._noticing():
                self._stream.flush()

    def let_go(self) -> None:
        """Drop what still waits to be written, for which Python would fail when it ends."""
        with suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        try:
            yield
        except UnicodeError:  # the text's fault, not the stream's
            raise
        except (OSError, ValueError) as e:  # ValueError: someone has closed it
            why = getattr(e, "strerror", None) or e
            self.is_unread = isinstance(e, BrokenPipeError)
            self.loss = f"since {time.strftime('%Y-%m-%d %H:%M:%S')} ({why})"


@contextmanager
def steady_output(is_last: bool = False, only_prints: bool = False) -> Iterator[None]:
    """While open, a broken pipe or a full disk behind standard output or error ends nothing.

    What was lost is said on standard error at the end, unless the program ``only_prints`` and its
    reader has seen enough. ``is_last`` is for a program that has nothing to do after that but end.
    """
    if isinstance(sys.stdout, SteadyStream):
        yield
        return
    before = sys.stdout, sys.stderr
    out, err = SteadyStream(sys.stdout), SteadyStream(sys.stderr)
    sys.stdout, sys.stderr = out, err  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        out.flush()
        if out.loss and not (only_prints and out.is_unread):
            err.write(f"warning: standard output was lost {out.loss}; everything else went on\n")
        err.flush()
        for stream in (out, err) if is_last else ():
            if stream.loss:
                stream.let_go()
