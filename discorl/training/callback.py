"""Looking on while an agent trains: what a callback sees, and what it may ask for.

    def callback(run: RunView) -> None: ...

is called after each training step, in the first process if there are several.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import discorl
from discorl.errors import DiscorlError
from discorl.runs.program import CallbackFailed

if TYPE_CHECKING:
    from discorl.training.checkup import Checkup, Policy
    from discorl.training.config import TrainConfig
    from discorl.training.trained_agent import LoadedAgent
    from discorl.training.watching import Watching

PACKAGE = Path(discorl.__file__).parent


class RunView:
    """A run as a callback sees it. It can look at everything, and change nothing."""

    __slots__ = ("_folder", "_logged", "_row", "_watching")

    def __init__(self, watching: Watching) -> None:
        self._watching = watching
        self._folder = Path()
        self._row: Mapping[str, Any] = MappingProxyType({})
        self._logged = False

    @property
    def step(self) -> int:
        """Training steps done."""
        return self._watching.program.state.step

    @property
    def env_steps(self) -> int:
        """Environment steps done, in all copies and all processes."""
        return self._watching.program.env_steps

    @property
    def seconds(self) -> float:
        """How long the run has taken, with what it took before it was resumed."""
        return self._watching.program.state.seconds

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self._folder

    @property
    def config(self) -> TrainConfig:
        """The run's settings, with everything that was left open filled in."""
        return self._watching.program.config

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The last row of metrics.jsonl; empty before the first."""
        return self._row

    @property
    def is_logged(self) -> bool:
        """Whether ``metrics`` are new: there is a row every ``config.log_every`` steps."""
        return self._logged

    @property
    def best(self) -> Checkup | None:
        """The best evaluation so far, if there was any."""
        best = self._watching.program.state.seen.best
        return best.checkup if best else None

    @property
    def agent(self) -> LoadedAgent:
        """The agent as it is now: a copy, which stays as it is when training continues."""
        return self._watching.agent()

    def evaluate(self, episodes: int | None = None, policy: Policy | None = None) -> Checkup:
        """Play whole episodes with the agent, on environments that training never sees.

        By default as many, and with the policies, that the settings say. The result counts like
        that of ``eval_every``: if it is the best so far, the agent becomes best.npz.
        """
        return self._watching.check_up(episodes, policy)

    def checkpoint(self) -> None:
        """Save a checkpoint when the callback returns."""
        self._watching.ask(checkpoint=True)

    def stop(self, reason: str = "the callback asked for it") -> None:
        """End the run when the callback returns. It counts as finished, and can be resumed."""
        self._watching.ask(stop=reason or "the callback asked for it")

    def show(self, folder: Path, row: Mapping[str, Any] | None) -> None:
        """The shell's part: what was logged after a step."""
        self._folder, self._logged = folder, row is not None
        if row is not None:
            self._row = MappingProxyType(dict(row))


Callback = Callable[[RunView], object]
"""Looks at a run after each training step; what it returns is ignored."""


def call(callback: Callback, view: RunView) -> CallbackFailed | None:
    """Call it; what it raises ends the run, but not before everything is saved."""
    try:
        callback(view)
        return None
    except Exception as e:
        said = str(e) if isinstance(e, DiscorlError) else f"{type(e).__name__}: {e}".rstrip(": ")
        failed = CallbackFailed(f"the callback failed at step {view.step}{_where(e)}: {said}")
        failed.__cause__ = e
        return failed


def _where(error: Exception) -> str:
    """The line of the user's code that failed or called what did."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not Path(frame.filename).is_relative_to(PACKAGE):
            return f" ({frame.filename}, line {frame.lineno})"
    return ""
