"""Whether a run that was attacked ended like one that was not."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import torch

from discorl.runs.checkpoint import load
from discorl.runs.files import load_params
from discorl.runs.metrics import TIMING_FIELDS

PREFIX = struct.Struct("<8sIQQ")
SEAL_BYTES = 32
NOT_COMPARED = {"out"}
"""Settings that say where a run is."""


def differences(
    whole: Path, other: Path, *, is_exact: bool, was_stopped: bool = False
) -> list[str]:
    """What is different, in every byte that is not a time, or for inexact runs in what was lost.

    One that was asked to stop saves a checkpoint, which can still be there in the end in place of
    an older one than the newest.
    """
    names, found = _files(whole), _files(other)
    if was_stopped:
        names, found = (files - _older_checkpoints(files) for files in (names, found))
    said = [f"{name} is missing" for name in sorted(names - found)]
    said += [f"{name} is left over" for name in sorted(found - names)]
    for name in sorted(names & found):
        try:
            same = timeless(whole / name, is_exact) == timeless(other / name, is_exact)
        except Exception as e:
            said.append(f"{name} cannot be read: {type(e).__name__}: {e}")
        else:
            said += [] if same else [f"{name} differs"]
    return said


def timeless(path: Path, is_exact: bool = True) -> Any:
    """What equal runs have in common in a file."""
    if path.name == "config.json":
        return {k: v for k, v in json.loads(path.read_text()).items() if k not in NOT_COMPARED}
    if path.name == "metrics.jsonl":
        return [_row(line, is_exact) for line in path.read_text().splitlines(keepends=True)]
    if path.suffix == ".pt":  # pickles of equal trees differ in what they remember
        return digest(torch.load(path, weights_only=True))
    if is_exact:
        return _checkpoint(path.read_bytes()) if path.suffix == ".dc" else path.read_bytes()
    if path.suffix == ".npz":
        return {name: (x.shape, x.dtype) for name, x in load_params(path).items()}
    if path.suffix == ".dc":
        return load(path)["shared"]["step"]
    return path.stat().st_size > 0


def _files(folder: Path) -> set[str]:
    # A script's own state may be behind its result.
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} - {"state.new"}


def _older_checkpoints(files: set[str]) -> set[str]:
    saved = [name for name in files if name.endswith(".dc")]
    return {*sorted(saved, key=lambda name: int(name.rpartition("-")[2][:-3]))[:-1]}


def _row(line: str, is_exact: bool) -> Any:
    assert line.endswith("\n"), "a line without an end"
    row = json.loads(line)
    if not is_exact:
        return row["step"], row["env_steps"]
    return [(k, v) for k, v in row.items() if k not in TIMING_FIELDS]


def _checkpoint(data: bytes) -> tuple[Any, ...]:
    """Everything but the seconds that the run took, and what follows from them."""
    magic, version, header_size, data_size = PREFIX.unpack_from(data)
    header = data[PREFIX.size :][:header_size]
    rest = data[PREFIX.size + header_size : -SEAL_BYTES]
    return magic, version, data_size, _without_seconds(json.loads(header)), rest


def _without_seconds(x: Any) -> Any:
    if isinstance(x, dict):
        return {k: _without_seconds(v) for k, v in x.items() if k != "seconds"}
    return [_without_seconds(v) for v in x] if isinstance(x, list) else x


def digest(x: Any) -> Any:
    """A tree with a checksum in place of each tensor."""
    if isinstance(x, dict):
        return {k: digest(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [digest(v) for v in x]
    if isinstance(x, torch.Tensor):
        return hashlib.sha256(x.detach().contiguous().numpy().tobytes()).hexdigest()
    return repr(x)
