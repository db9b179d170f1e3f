"""Where the metrics of a run go: metrics.jsonl always, other places if asked."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from discorl.atomic import write_atomically
from discorl.errors import DiscorlError

Row = dict[str, Any]

TIMING_FIELDS = ("seconds", "steps_per_second", "env_steps_per_second")
"""What differs between two runs that are equal otherwise."""


class Log(Protocol):
    """Takes the rows of a run."""

    def write(self, row: Row) -> None:
        """Add a row; its ``step`` is larger than the one before."""
        ...

    def close(self) -> None:
        """No more rows."""
        ...


class MetricsFile:
    """metrics.jsonl: a JSON object on each line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            # Unbuffered: a failed write is noticed in ``write``, not again when closing.
            self._file = path.open("ab", buffering=0)
        except OSError as e:
            raise DiscorlError(f"cannot write {path}: {e.strerror}") from None

    def write(self, row: Row) -> None:
        data = (json.dumps(row) + "\n").encode()
        try:
            if self._file.write(data) != len(data):
                raise OSError(0, "the disk is full")
        except OSError as e:
            raise DiscorlError(
                f"cannot write {self._path}: {e.strerror}; make room, then go on with --resume"
            ) from None

    def sync(self) -> None:
        """Make sure that the rows outlast a power cut."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_rows(path: Path) -> list[Row]:
    """The rows of a metrics file; a last line that was cut off in the middle does not count."""
    rows = []
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    for number, line in enumerate(lines[:-1], 1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            raise DiscorlError(f"{path}: line {number} is damaged: {line[:40]!r}") from None
    if any(not isinstance(row, dict) or type(row.get("step")) is not int for row in rows):
        raise DiscorlError(f"{path} is damaged: not all of its lines have a step")
    return rows


def rewind(path: Path, step: int, log_every: int) -> list[Row]:
    """Cut a metrics file back to what an uninterrupted run would have logged by ``step``."""
    rows = [row for row in read_rows(path) if row["step"] <= step and row["step"] % log_every == 0]
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return rows


class TensorBoardLog:
    """Event files for TensorBoard, in ``tensorboard`` below the run's folder."""

    def __init__(self, folder: Path, first_step: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as e:
            raise DiscorlError(
                f"--log tensorboard needs the package: pip install 'discorl[tensorboard]' ({e})"
            ) from None
        purge = first_step + 1 if first_step else None  # of what a killed run logged after it
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)

    def write(self, row: Row) -> None:
        for name, value in row.items():
            if name != "step":
                self._writer.add_scalar(name, value, row["step"])

    def close(self) -> None:
        self._writer.close()


class WandbLog:
    """Weights & Biases; WANDB_PROJECT, WANDB_MODE and the like are taken from the environment."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError as e:
            raise DiscorlError(
                f"--log wandb needs the package: pip install 'discorl[wandb]' ({e})"
            ) from None
        id_file = folder / "wandb-id"
        # One run there for one folder here, even if it was killed before its first checkpoint.
        known = id_file.read_text() if id_file.exists() else None
        try:
            self._run: Any = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "discorl"),
                dir=str(folder),
                name=folder.name,
                config=config,
                id=known,
                resume="allow" if known else None,
            )
        except Exception as e:  # its own, of many kinds: no login, no network
            raise DiscorlError(
                f"Weights & Biases does not start ({e}); log in with 'wandb login', or set "
                "WANDB_MODE=offline"
            ) from None
        write_atomically(id_file, self._run.id.encode())

    def write(self, row: Row) -> None:
        self._run.log({k: v for k, v in row.items() if k != "step"}, step=row["step"])

    def close(self) -> None:
        self._run.finish()


def open_logs(
    names: Sequence[str], folder: Path, config: dict[str, Any], first_step: int = 0
) -> list[Log]:
    """The logs besides metrics.jsonl; a run that goes on does so after ``first_step``."""
    logs: list[Log] = []
    for name in names:
        if name == "tensorboard":
            logs.append(TensorBoardLog(folder, first_step))
        else:
            logs.append(WandbLog(folder, config))
    return logs
