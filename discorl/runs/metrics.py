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
"""What differs between two otherwise equal runs."""


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
                f"cannot write {self._path}: {e.strerror}; free some space, then use --resume"
            ) from None

    def sync(self) -> None:
        """Make sure that the rows survive a power cut."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_rows(path: Path) -> list[Row]:
    """The rows of a metrics file, one for each line; a last line that was cut short is left out."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    except OSError as e:
        raise DiscorlError(f"cannot read {path}: {e.strerror}") from None
    return [_parse(line, f"{path} is damaged at line {n}") for n, line in enumerate(lines, 1)]


def _parse(line: bytes, damaged: str) -> Row:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise DiscorlError(f"{damaged}: it is not JSON: {line[:40]!r}") from None
    if not isinstance(row, dict):
        raise DiscorlError(f"{damaged}: it is not an object")
    if type(row.get("step")) is not int:
        raise DiscorlError(f"{damaged}: it has no step")
    for name, value in row.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or (isinstance(value, int) and abs(value) >= 2**63):
            raise DiscorlError(f"{damaged}: its {name:.40} is not a number")
    return row


def is_due(step: int, intervals: Sequence[int]) -> bool:
    """Whether one of the intervals ends at ``step``."""
    return any(step % n == 0 for n in intervals)


def rewind(path: Path, step: int, row_every: Sequence[int], last: int) -> list[Row]:
    """Cut a metrics file back to what an uninterrupted run to ``last`` has logged by ``step``."""

    def belongs(n: int) -> bool:
        return n <= step and (n == last or is_due(n, row_every))

    rows = [row for row in read_rows(path) if belongs(row["step"])]
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return rows


class TensorBoardLog:
    """Event files for TensorBoard, in ``tensorboard`` below the run's folder."""

    def __init__(self, folder: Path, first_step: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as e:
            raise DiscorlError(
                f"--log tensorboard needs a package: pip install 'discorl[tensorboard]' ({e})"
            ) from None
        purge = first_step + 1 if first_step else None  # drop what a killed run logged after it
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
                f"--log wandb needs a package: pip install 'discorl[wandb]' ({e})"
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
                f"Weights & Biases did not start ({e}); log in with 'wandb login', or set "
                "WANDB_MODE=offline"
            ) from None
        write_atomically(id_file, self._run.id.encode())

    def write(self, row: Row) -> None:
        self._run.log({k: v for k, v in row.items() if k != "step"}, step=row["step"])

    def close(self) -> None:
        self._run.finish()


LOGS = ("tensorboard", "wandb")


def log_names(text: str) -> list[str]:
    """The logs that ``--log`` asks for, separated by commas."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in LOGS:
            raise DiscorlError(f"log: there is no log called '{name}'; use {' or '.join(LOGS)}")
    return names


def open_log(name: str, folder: Path, config: dict[str, Any], first_step: int = 0) -> Log:
    """A log besides metrics.jsonl; a resumed run adds to it after ``first_step``."""
    if name == "tensorboard":
        return TensorBoardLog(folder, first_step)
    return WandbLog(folder, config)
