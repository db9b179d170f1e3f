"""Files of a run folder, written so that a crash never leaves half of one."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from discorl.atomic import RANDOM, own_files, remove_partial, write_atomically
from discorl.errors import DiscorlError
from discorl.npz import read_npz
from discorl.types import Params

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

MAX_PARAMS_BYTES, MAX_PARAMS = 4 * 2**30, 10_000
"""Of an agent: a thousand million parameters; the paper's largest have a few per cent of that."""
PARAMS_DTYPES = ("float16", "float32", "float64", "int32", "int64", "uint8", "bool")
WRITTEN = {
    ".": r"(?:config\.json|metrics\.jsonl|(?:agent|env|rule|best|best-env)\.npz|curve\.png"
    r"|wandb-id|\.torchrun)",
    "checkpoints": r"checkpoint-\d+(?:-[a-z]+)?\.dc",
    "snapshots": r"rule-\d+\.npz",
}
"""What a run writes, by the folder it is in."""


def new_run_folder(out: Path | None, default_name: str) -> Path:
    """Create the folder of a run; refuses one that already holds a run."""
    folder = out or Path("runs") / f"{default_name}-{time.strftime('%Y%m%d-%H%M%S')}"
    if out is not None:
        _check_free(folder)
    try:
        try:
            folder.mkdir(parents=True, exist_ok=out is not None)
        except FileExistsError:
            if out is not None:  # it is a file
                raise
            # Another run began in the same second.
            folder = folder.with_name(f"{folder.name}-{os.getpid()}")
            folder.mkdir()
        with tempfile.TemporaryFile(dir=folder):
            pass  # it can be written to
    except OSError as e:
        raise DiscorlError(
            f"cannot write to {folder}: {e.strerror}; choose another --out"
        ) from None
    return folder


@contextmanager
def started_folder(out: Path | None, default_name: str, stack: ExitStack) -> Iterator[Path]:
    """The folder of a new run, locked by ``stack``; open while the run starts in it.

    If it fails to start, nothing is left behind.
    """
    base = out or Path("runs")
    missing = [p for p in (base, *base.parents) if not p.exists()]
    folder = new_run_folder(out, default_name)
    stack.enter_context(held(folder))
    _check_free(folder)  # again: another process may have been faster
    before = set(folder.iterdir())
    try:
        yield folder
    except BaseException:
        for path in set(folder.iterdir()) - before:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in missing if out else [folder, *missing]:
            with suppress(OSError):  # another run has started in it in the meantime
                path.rmdir()
        raise


def _check_free(folder: Path) -> None:
    if (folder / "config.json").exists():
        raise HoldsRun(f"{folder} already holds a run: choose another --out or remove it")


class HoldsRun(DiscorlError):  # noqa: N818 - reads as a sentence where it is caught
    """A new run cannot begin in a folder."""


class InUse(DiscorlError):  # noqa: N818 - reads as a sentence where it is caught
    """Another process trains into a folder."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock a run's folder; a second process that tries to train into it is refused.

    The system releases the lock when the process ends, however it ends. What a killed process was
    writing at that moment is removed.
    """
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(
                f"another process is training into {folder}: wait until it ends, or stop it"
            ) from None
        except OSError:
            pass  # some network file systems have no locks
        else:
            _remove_leftovers(folder)
        yield
    finally:
        os.close(handle)


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files of the run in ``folder``, which must be locked, and of no one else."""
    for place, names in WRITTEN.items():
        remove_partial(folder / place, names)
        # Earlier versions gave them no ending. A word (.original) or a date is not one of them, nor
        # is what others may read.
        early = re.compile(rf"\.(?:{names})\.(?=.*[a-z])(?=.*[0-9_]){RANDOM}")
        for path, found in own_files(folder / place, early):
            if found.st_mode & 0o077 == 0:
                with suppress(OSError):
                    path.unlink()


def write_json(path: Path, content: Any) -> None:
    """JSON that people can read."""
    write_text(path, json.dumps(content, indent=2, default=str) + "\n")


def write_text(path: Path, text: str) -> None:
    """Text as UTF-8."""
    try:
        write_atomically(path, text.encode())
    except OSError as e:
        raise DiscorlError(
            f"cannot write {path}: {e.strerror}; free some space, or write elsewhere"
        ) from None


def save_params(path: Path, params: Params) -> None:
    """Parameters as an npz archive, which loads without unpickling."""
    buffer = io.BytesIO()
    arrays: Mapping[str, np.ndarray] = {k: p.detach().cpu().numpy() for k, p in params.items()}
    np.savez(buffer, allow_pickle=False, **arrays)
    write_atomically(path, buffer.getvalue())


def load_params(path: Path) -> Params:
    """Parameters that ``save_params`` wrote."""
    try:
        arrays, _ = read_npz(
            path, "an agent file", MAX_PARAMS_BYTES, MAX_PARAMS, _check_params_array
        )
    except FileNotFoundError:
        raise DiscorlError(f"no agent at {path}: is this the folder of a finished run?") from None
    except (OSError, DiscorlError) as e:
        reason = e if isinstance(e, DiscorlError) else f"cannot read {path}: {e.strerror or e}"
        raise DiscorlError(f"{reason}. Resume the run that wrote it, or restore a copy") from None
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _check_params_array(dtype: np.dtype, shape: tuple[int, ...]) -> None:
    if dtype.name not in PARAMS_DTYPES or not dtype.isnative or len(shape) > 8:
        raise ValueError(f"no agent has an array {dtype} {list(shape)!s:.60}")
