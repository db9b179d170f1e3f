"""Stopping between two steps instead of in the middle of one."""

from __future__ import annotations

import signal
import threading
from types import FrameType

NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class StopRequest:
    """While open, the first Ctrl-C or SIGTERM is only noted; a second Ctrl-C raises as usual.

    ``patient`` is for several processes: SIGTERM is left alone, because it says that another of
    them died, and Ctrl-C may come twice, from the terminal and from torchrun.
    """

    def __init__(self, patient: bool = False) -> None:
        self.reason: str | None = None
        self._patient = patient
        self._signals = [signal.SIGINT] if patient else list(NAMES)
        self._before: dict[signal.Signals, object] = {}

    @property
    def requested(self) -> bool:
        """Whether someone asked to stop."""
        return self.reason is not None

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            for number in self._signals:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.requested and number == signal.SIGINT and not self._patient:
            raise KeyboardInterrupt
        self.reason = NAMES[signal.Signals(number)]
