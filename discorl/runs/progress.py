"""Progress of a run on the terminal: a live bar, or plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections import deque

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from discorl.runs.terminal import say

NUM_LINES = 20
RECENT_SECONDS = 60.0
"""How far back the speed goes that the remaining time is estimated from."""
RECENT_STEPS = 5
"""And how many steps at least, where a step takes long."""
SMALLEST_BAR = 8
JUDGEMENTS = {"validation": "validation", "eval/sampled": "eval", "eval/greedy": "eval"}
"""Scores that only some rows have; of several in a row, the first is shown until the next."""


class RunProgress:
    """Shows how far a run is and how it goes."""

    def __init__(
        self, total: int, style: str, success_name: str, console: Console, first: int = 0
    ) -> None:
        if style == "auto":
            style = "bar" if console.is_terminal else "lines"
        self._style = style
        self._total = total
        self._success_name = success_name
        self._console = console
        self._speed = RecentSpeed(first)  # steps before it were done by the run this one resumes
        self._judgement = ""  # the last one known
        self._printed = first * NUM_LINES // total
        self._bar = Progress(
            BarColumn(bar_width=None),
            TextColumn("{task.fields[status]}", markup=False),
            console=console,
            disable=style != "bar",
            expand=True,
        )
        status = f"step {first}/{total}"  # until there are metrics, which may take minutes
        self._task = self._bar.add_task("", total=total, completed=first, status=status)

    def __enter__(self) -> RunProgress:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def update(self, step: int, metrics: dict[str, float]) -> None:
        """Show that ``step`` steps are done."""
        self._speed.add(step)
        left = self._speed.seconds_for(self._total - step)
        count, eta = f"step {step}/{self._total}", f"eta {clock(left)}"
        fields = self._fields(metrics)
        if self._style == "bar":
            room = self._console.width - SMALLEST_BAR - 1
            self._bar.update(self._task, completed=step, status=fitted(count, fields, eta, room))
        due = step * NUM_LINES // self._total
        if self._style == "lines" and due > self._printed:
            self._printed = due
            say(self._console, fitted(count, fields, eta, self._console.width))

    def _fields(self, metrics: dict[str, float]) -> list[str]:
        """How it goes, the most important first."""
        shown = []
        if "return" in metrics:
            shown.append(f"return {metrics['return']:.2f}")
        if "meta_return" in metrics:
            shown.append(f"meta-return {metrics['meta_return']:.2f}")
        for name, label in JUDGEMENTS.items():
            if name in metrics:
                self._judgement = f"{label} {metrics[name]:.2f}"
                break
        if self._judgement:
            shown.append(self._judgement)
        if "success" in metrics:
            shown.append(f"{self._success_name} {metrics['success']:.0%}")
        if "loss" in metrics:
            shown.append(f"loss {metrics['loss']:.3f}")
        if "steps_per_second" in metrics:
            shown.append(f"{metrics['steps_per_second']:.1f} steps/s")
        return shown


class RecentSpeed:
    """How fast steps are made, by the last minute rather than by the whole run."""

    def __init__(self, first: int) -> None:
        self._seen = deque([(time.monotonic(), first)])

    def add(self, step: int) -> None:
        """Note that ``step`` steps are done now."""
        now = time.monotonic()
        self._seen.append((now, step))
        while len(self._seen) > RECENT_STEPS + 1 and self._seen[1][0] < now - RECENT_SECONDS:
            self._seen.popleft()

    def seconds_for(self, steps: int) -> float:
        """How long so many steps will take at this speed."""
        (began, first), (now, last) = self._seen[0], self._seen[-1]
        return steps * (now - began) / max(last - first, 1)


def fitted(count: str, fields: list[str], eta: str, width: int) -> str:
    """A line with the count, as many of the first fields as have room, and the remaining time."""
    shown: list[str] = []
    for field in fields:
        if len("  ".join([count, *shown, field, eta])) > width:
            break
        shown.append(field)
    return "  ".join([count, *shown, eta])


def clock(seconds: float) -> str:
    """A duration in hours, minutes and seconds: ``1:02:03``, ``2:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
