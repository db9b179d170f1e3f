"""Progress of a run on the terminal: a live bar, or plain lines where there is no terminal."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from discorl.runs.terminal import say

NUM_LINES = 20
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
        self._start = time.monotonic()
        self._judgement = ""  # the last one known
        self._first = first  # steps that were done before, in the run this one resumes
        self._printed = first * NUM_LINES // total
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}", markup=False),
            TextColumn("eta"),
            TimeRemainingColumn(),
            console=console,
            disable=style != "bar",
            expand=True,
        )
        self._task = self._bar.add_task("steps", total=total, completed=first, status="")

    def __enter__(self) -> RunProgress:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def update(self, step: int, metrics: dict[str, float]) -> None:
        """Show that ``step`` steps are done."""
        status = "  ".join(self._fields(metrics))
        self._bar.update(self._task, completed=step, status=status)
        due = step * NUM_LINES // self._total
        if self._style == "lines" and due > self._printed:
            self._printed = due
            elapsed = time.monotonic() - self._start
            left = elapsed / max(step - self._first, 1) * (self._total - step)
            say(self._console, f"step {step}/{self._total}  {status}  eta {left:.0f}s")

    def _fields(self, metrics: dict[str, float]) -> list[str]:
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
