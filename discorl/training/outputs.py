"""What a run shows and leaves on disk while it goes: rows of metrics, checkpoints, progress."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console

from discorl.runs import distributed
from discorl.runs.checkpoint import CheckpointFolder
from discorl.runs.distributed import Ranks
from discorl.runs.metrics import Log, MetricsFile, Row, open_logs, rewind
from discorl.runs.progress import RunProgress
from discorl.training.config import TrainConfig
from discorl.training.state import RunState, snapshot
from discorl.types import EnvSpec


class Outputs:
    """The imperative shell around the loop. Only the first process writes.

    ``log`` and ``save_checkpoint`` must be called in all processes at the same steps.
    """

    def __init__(
        self,
        config: TrainConfig,
        ranks: Ranks,
        spec: EnvSpec,
        folder: Path,
        settings: dict[str, Any],
        state: RunState,
        console: Console,
    ) -> None:
        self.folder = folder
        self.rows: list[Row] = []
        self._config, self._ranks = config, ranks
        self._checkpoints = CheckpointFolder(folder / "checkpoints", config.checkpoint.keep)
        self._metrics: MetricsFile | None = None
        self._logs: list[Log] = []
        if ranks.is_first:
            path = folder / "metrics.jsonl"
            self.rows = rewind(path, state.step, config.log_every)
            self._logs = open_logs(config.logs, folder, settings, state.step)
            self._metrics = MetricsFile(path)
        style = config.progress if ranks.is_first else "none"
        self._progress = RunProgress(config.steps, style, spec.success_name, console, state.step)
        now = time.monotonic()
        self._start = now - state.seconds
        self._last_row = (state.step, now)
        self._saved_at = now

    def __enter__(self) -> Outputs:
        self._progress.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.__exit__(kind, error, trace)
        for log in [*self._logs, *([self._metrics] if self._metrics else [])]:
            log.close()

    def log(self, state: RunState) -> None:
        """A row of metrics, to everywhere."""
        row = self._row(state)
        if self._metrics is None:
            return
        self.rows.append(row)
        for log in (self._metrics, *self._logs):
            log.write(row)
        self._progress.update(state.step, row)

    def _row(self, state: RunState) -> Row:
        config, now = self._config, time.monotonic()
        last_step, last_time = self._last_row
        self._last_row = (state.step, now)
        rate = (state.step - last_step) / max(now - last_time, 1e-9)
        per_step = config.num_envs * config.rollout_length
        episodes = distributed.total(state.episodes.num_episodes)
        return {
            "step": state.step,
            "env_steps": state.step * per_step,
            "seconds": round(now - self._start, 3),
            "steps_per_second": round(rate, 3),
            "env_steps_per_second": round(rate * per_step, 1),
            "episodes": episodes,
            **state.episodes.summary(distributed.mean),
            **state.updates.summary(distributed.mean),
            "replay/age": replay_age(
                self._ranks.size * len(state.replay),
                config.num_envs,
                config.num_fresh,
                config.batch_size,
            ),
        }

    def checkpoint_is_due(self, state: RunState) -> bool:
        """By steps or by the first process's clock."""
        due = self._config.checkpoint
        if due.every_steps and state.step % due.every_steps == 0:
            return True
        if due.every_minutes is None or self._metrics is None:
            return False
        return time.monotonic() - self._saved_at >= due.every_minutes * 60

    def save_checkpoint(self, state: RunState) -> Path | None:
        """Write a checkpoint, unless the configuration wants none."""
        wanted = self._config.checkpoint
        if wanted.every_steps is None and wanted.every_minutes is None:
            return None
        state.seconds = time.monotonic() - self._start
        content = snapshot(state)
        path = self._checkpoints.path(state.step)
        if self._metrics is not None:
            self._metrics.sync()  # the rows before the state that follows them
            self._checkpoints.save(state.step, content)
        self._saved_at = time.monotonic()
        return path


def replay_age(size: int, num_envs: int, num_fresh: int, batch_size: int) -> float:
    """Training steps since a trajectory of a batch was made, on average.

    ``num_fresh`` of the batch are the newest; the rest are drawn uniformly from all that are kept.
    """

    def mean_age(newest: int) -> float:  # there are num_envs of each age
        full, rest = divmod(newest, num_envs)
        return (num_envs * full * (full - 1) / 2 + rest * full) / max(newest, 1)

    fresh = num_fresh / batch_size
    return fresh * mean_age(num_fresh) + (1 - fresh) * mean_age(size)
