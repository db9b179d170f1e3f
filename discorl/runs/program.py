"""What a long job is to the shell that runs it: a program of steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from discorl.errors import DiscorlError
from discorl.runs.checkpoint import CheckpointConfig
from discorl.runs.distributed import Ranks
from discorl.runs.metrics import Row, read_rows
from discorl.runs.summary import run_html, run_line
from discorl.runs.threads import Threads


class Diverged(DiscorlError):  # noqa: N818 - reads as a sentence where it is caught
    """Learning went wrong. The program's state is what it was before that, and worth keeping."""


class CallbackFailed(DiscorlError):  # noqa: N818 - reads as a sentence where it is caught
    """A function of the user's that looks on has failed. What was learnt is worth keeping."""


@dataclass(frozen=True)
class Asked:
    """What a program asks of the shell between two steps; in the first process, for all."""

    stop: str = ""
    """Why the run should end here, or nothing."""
    checkpoint: bool = False
    """Whether to save one now."""
    failure: CallbackFailed | None = None
    """What went wrong in someone who only looks on; it stops the run as well."""


class RunConfig(Protocol):
    """The settings that every kind of run has."""

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        ...

    @property
    def out(self) -> Path | None:
        """The run's folder; None for a new one below runs/."""
        ...

    @property
    def threads(self) -> Threads:
        """Threads that torch computes with."""
        ...

    @property
    def log(self) -> str:
        """Where metrics go besides metrics.jsonl."""
        ...

    @property
    def progress(self) -> str:
        """How progress is shown."""
        ...

    @property
    def checkpoint(self) -> CheckpointConfig:
        """When checkpoints are saved."""
        ...


class RunState(Protocol):
    """What changes in a run, as far as the shell needs to know."""

    step: int
    """Steps done: the program counts them."""
    seconds: float
    """Time they took: the shell keeps track of it."""


class Program(Protocol):
    """A job in steps. Every process has one, and its methods are called in all of them."""

    kind: str
    """The command that starts it."""
    unit: str
    """What it calls a step."""
    result: str
    """The file that the run is for."""
    name: str
    """Name of the run's folder, if the user gave none."""
    success_name: str
    """What the metric ``success`` is called on the terminal."""
    row_every: Sequence[int]
    """Steps between two rows of metrics; several intervals may run side by side."""
    ranks: Ranks

    @property
    def config(self) -> RunConfig:
        """Its settings."""
        ...

    @property
    def state(self) -> RunState:
        """What changes, from ``begin`` on."""
        ...

    def settings(self) -> dict[str, Any]:
        """The configuration for config.json, with everything filled in."""
        ...

    def begin(self, before: dict[str, Any] | None) -> str:
        """Build everything the steps need, and the first state; say what is about to run.

        ``before`` is the config.json of a run to resume: raise if it is not this one.
        """
        ...

    def step(self, folder: Path) -> None:
        """Take one step. Files written along the way go into ``folder``."""
        ...

    def position(self) -> int:
        """How far the run is on the axis of its curves: in environment steps if rows have them."""
        ...

    def watch(self, folder: Path, row: Row | None) -> None:
        """Look on, after each step; ``row`` was just logged, if one was due. It changes nothing."""
        ...

    def asked(self) -> Asked:
        """What the program wants now; also before the first step of a run that is resumed."""
        ...

    def row(self) -> Row:
        """The metrics since the last row, averaged over the processes."""
        ...

    def snapshot(self) -> Any:
        """The tree for a checkpoint, in the first process; None in the others."""
        ...

    def restore(self, content: Any) -> str:
        """Take the state from a checkpoint, which only the first process has.

        Returns what the user should know about it, or nothing.
        """
        ...

    def finish(self, folder: Path, rows: Iterable[Row]) -> str:
        """Write the result, and say where it is. Other processes may be gone.

        ``rows`` come from the run's file, each time they are asked for: there may be millions.
        """
        ...


@dataclass(frozen=True)
class RunResult:
    """A finished or interrupted run."""

    folder: Path
    interrupted: bool
    """Whether a signal ended it before its last step."""
    stopped: str = ""
    """Why it ended before its last step, if it was asked to: by a callback, or by a setting."""

    @property
    def metrics(self) -> list[Row]:
        """The rows of metrics.jsonl, read from the folder each time you ask for them."""
        return read_metrics(self.folder)

    def __fspath__(self) -> str:
        """A run is its folder, wherever a path is asked for."""
        return str(self.folder)

    @property
    def _note(self) -> str:
        return f"stopped early: {self.stopped}" if self.stopped else _INTERRUPTED[self.interrupted]

    def __repr__(self) -> str:
        return run_line(self.folder, self._note)

    def _repr_html_(self) -> str:
        return run_html(self.folder, self._note)


_INTERRUPTED = {False: "", True: "interrupted"}


def read_metrics(folder: Path) -> list[Row]:
    """What a run has logged so far."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        raise DiscorlError(f"{path} is gone: read a run's metrics before you remove its folder")
    return read_rows(path)
