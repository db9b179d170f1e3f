"""Where metrics go besides metrics.jsonl: TensorBoard, Weights & Biases."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from discorl.atomic import write_atomically
from discorl.errors import DiscorlError
from discorl.runs.metrics import GAP, Log, Row


class TensorBoardLog:
    """Event files for TensorBoard, in ``tensorboard`` below the run's folder.

    Against environment steps where rows have them: rules differ in how many a training step takes.
    """

    def __init__(self, folder: Path, begun_at: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as e:
            raise DiscorlError(
                f"--log tensorboard needs a package: pip install 'discorl[tensorboard]' ({e})"
            ) from None
        purge = begun_at + 1 if begun_at else None  # drop what a killed run logged after it
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)

    def write(self, row: Row) -> None:
        position = row.get("env_steps", row["step"])
        for name, value in row.items():
            if name not in ("step", "env_steps", GAP):
                self._writer.add_scalar(name, value, position)
        self._writer.flush()  # it would show nothing for the first two minutes

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
        self._has_axis = False

    def write(self, row: Row) -> None:
        if "env_steps" in row and not self._has_axis:
            self._run.define_metric("env_steps", hidden=True)
            self._run.define_metric("*", step_metric="env_steps")
            self._has_axis = True
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


def open_log(name: str, folder: Path, config: dict[str, Any], begun_at: int = 0) -> Log:
    """A log besides metrics.jsonl; a resumed run adds to it after ``begun_at``, on its axis."""
    if name == "tensorboard":
        return TensorBoardLog(folder, begun_at)
    return WandbLog(folder, config)
