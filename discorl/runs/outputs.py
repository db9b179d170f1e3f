"""What a run shows and leaves on disk as it goes: config.json, metrics, checkpoints, progress."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from discorl.runs.checkpoint import CheckpointFolder
from discorl.runs.files import write_json
from discorl.runs.logs import log_names, open_log
from discorl.runs.metrics import (
    GAP,
    Due,
    Gap,
    Log,
    MetricsFile,
    Rewound,
    Row,
    Rows,
    is_due,
    name_steps,
    rewind,
)
from discorl.runs.program import Program
from discorl.runs.progress import RunProgress


class Outputs:
    """The records of a run, which only the first process writes.

    ``log`` and ``save_checkpoint`` must be called in all processes at the same steps.
    """

    def __init__(
        self, program: Program, folder: Path, settings: dict[str, Any], console: Console
    ) -> None:
        self.folder = folder
        self.rows: Iterable[Row] = ()
        """All that were logged so far; they are in the file, not in memory."""
        self.saved: Path | None = None
        """The last checkpoint that this process knows of."""
        self._program = program
        self._metrics: MetricsFile | None = None
        self._logged = Rewound()
        self._logs: list[Log] = []
        config, state = program.config, program.state
        self._checkpoints = CheckpointFolder(folder / "checkpoints", config.checkpoint.keep)
        with ExitStack() as opened:
            if program.ranks.is_first:
                # What may fail comes first: a run that cannot start changes nothing.
                for name in log_names(config.log):
                    self._logs.append(open_log(name, folder, settings, program.position()))
                    opened.callback(self._logs[-1].close)
                write_json(folder / "config.json", settings)
                path = folder / "metrics.jsonl"
                self._logged = rewind(path, state.step, Due(program.row_every), config.steps)
                if gaps := self._logged.new_gaps:
                    warnings.warn(_lost(path, gaps), stacklevel=2)
                self.rows = Rows(path)
                self._metrics = MetricsFile(path)
                opened.callback(self._metrics.close)
            self._opened = opened.pop_all()
        style = config.progress if program.ranks.is_first else "none"
        self._progress = RunProgress(config.steps, style, program.success_name, console, state.step)
        now = time.monotonic()
        self._start = now - state.seconds
        self._last_row = (state.step, now)
        self._saved_at = now

    def __enter__(self) -> Outputs:
        self._opened.enter_context(self._progress)
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def row_is_due(self) -> bool:
        """Whether the step is due to be logged."""
        return is_due(self._program.state.step, self._program.row_every)

    def lacks_last_row(self) -> bool:
        """Whether the last step is done but not logged; the first process knows."""
        step = self._program.state.step
        is_last = step == self._program.config.steps
        return self._metrics is not None and is_last and self._logged.last_step != step

    def log(self) -> Row | None:
        """Send a row of metrics everywhere; returns it in the first process."""
        values = self._program.row()
        state, now = self._program.state, self.tick()
        last_step, last_time = self._last_row
        self._last_row = (state.step, now)
        rate = (state.step - last_step) / max(now - last_time, 1e-9)
        row = {"step": state.step, "seconds": round(state.seconds, 3)}
        row["steps_per_second"] = round(rate, 3)
        if "env_steps" in values:
            row["env_steps_per_second"] = round(rate * values["env_steps"] / state.step, 1)
        row |= values
        if self._metrics is None:
            return None
        gap, self._logged = self._logged.open_gap, Rewound(state.step)
        self._metrics.write(row | {GAP: gap} if gap else row)
        for log in self._logs:
            log.write(row)
        self._progress.update(state.step, row)
        return row

    def tick(self) -> float:
        """Note how long the run has taken; returns the time."""
        now = time.monotonic()
        self._program.state.seconds = now - self._start
        return now

    def checkpoint_is_due(self) -> bool:
        """By steps, or by each process's own clock: one process that says so is enough."""
        passed = time.monotonic() - self._saved_at
        return self._program.config.checkpoint.are_due(self._program.state.step, passed)

    def save_checkpoint(self, is_diverged: bool = False) -> Path | None:
        """Write a checkpoint, unless the configuration wants none; say if learning went wrong."""
        if not self._program.config.checkpoint.are_wanted:
            return None
        content, step = self._program.snapshot(), self._program.state.step
        if self._metrics is not None:
            self._metrics.sync()  # the rows before the state that follows them
            self._checkpoints.save(step, content, is_diverged)
        self._saved_at = time.monotonic()
        self.saved = self._checkpoints.path(step, is_diverged)
        return self.saved


def _lost(path: Path, gaps: Sequence[Gap]) -> str:
    return (
        f"{path} has no rows for {name_steps(gaps)}: they were lost, or the run stopped before "
        f"they were written; the row after them is marked '{GAP}', and nothing else is affected"
    )
