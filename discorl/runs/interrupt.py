"""Stopping between two steps instead of in the middle of one."""

from __future__ import annotations

import signal
import threading
from types import FrameType

NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
if hasattr(signal, "SIGHUP"):  # not on Windows
    NAMES[signal.SIGHUP] = "SIGHUP"


class StopRequest:
    """While open, the first Ctrl-C, SIGTERM or SIGHUP is only noted; a second Ctrl-C raises.

    ``patient`` is for processes of torchrun, which sends them the signals that it gets, perhaps
    after the terminal has done so, and kills them half a minute later. A SIGTERM may also say that
    another of them died; then the next exchange with it fails.
    """

    def __init__(self, patient: bool = False) -> None:
        self.reason: str | None = None
        self.insisted = False
        """Whether a second Ctrl-C has raised KeyboardInterrupt, wherever the program was."""
        self._patient = patient
        self._before: dict[signal.Signals, object] = {}

    @property
    def requested(self) -> bool:
        """Whether someone asked to stop."""
        return self.reason is not None

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            for number in NAMES:
                if not self._is_unwanted(number):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _is_unwanted(self, number: signal.Signals) -> bool:
        """Whether nohup keeps it away. From torchrun it has got through nohup, and is meant."""
        is_ignored = signal.getsignal(number) is signal.SIG_IGN
        return NAMES[number] == "SIGHUP" and is_ignored and not self._patient

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.requested and number == signal.SIGINT and not self._patient:
            self.insisted = True
            raise KeyboardInterrupt
        self.reason = NAMES[signal.Signals(number)]
