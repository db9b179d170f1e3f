"""Golden files: named arrays, and what of ours they hold."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from discorl.errors import DiscorlError
from discorl.types import Rollout

T = TypeVar("T")
Arrays = dict[str, np.ndarray]


class Named(dict[str, T]):
    """What a file has below ``prefix``; what it lacks is called by its full name."""

    def __init__(self, found: Mapping[str, T], prefix: str = "") -> None:
        super().__init__(found)
        self.prefix = prefix

    def __missing__(self, name: str) -> T:
        raise DiscorlError(f"the file has no array '{self.prefix}{name}'")


INPUT = re.compile(
    r"(in|(target_|value_)?params_0|meta_params|(train_)?rollout_\d+|valid_rollout)/.*|tx/x"
)


def load(path: Path) -> Arrays:
    """The arrays of a file. If some are of float64, its results are, and so is the replay."""
    with np.load(path, allow_pickle=False) as archive:
        return of_one_precision(dict(archive))


def load_results_for(path: Path, inputs: Path) -> Arrays:
    """The results of one file, with the inputs of another."""
    return of_one_precision(inputs_of(load(inputs)) | load(path))


def of_one_precision(arrays: Arrays) -> Arrays:
    wide = is_float64(arrays)
    return Named(
        {
            k: v.astype(np.float64) if wide and v.dtype == np.float32 else v
            for k, v in arrays.items()
        }
    )


def inputs_of(arrays: Arrays) -> Arrays:
    """What the reference was given to make the rest."""
    return {name: array for name, array in arrays.items() if INPUT.fullmatch(name)}


def digest(arrays: Arrays) -> str:
    """A name for the inputs of a file, whatever the file is called and whatever its results."""
    seen = hashlib.sha256()
    for name, array in sorted(inputs_of(arrays).items()):
        seen.update(
            name.encode() + str(array.shape).encode() + np.ascontiguousarray(array).tobytes()
        )
    return seen.hexdigest()[:16]


def is_float64(arrays: Arrays) -> bool:
    """Whether the reference computed in float64."""
    return any(array.dtype == np.float64 for array in arrays.values())


def group(arrays: Arrays, prefix: str) -> Arrays:
    """The arrays below ``prefix/``."""
    below = f"{prefix}/"
    return Named(
        {k.removeprefix(below): v for k, v in arrays.items() if k.startswith(below)}, below
    )


def count(arrays: Arrays, prefix: str) -> int:
    """How many ``prefix_i`` there are."""
    found = {int(m.group(1)) for k in arrays if (m := re.match(rf"{prefix}_(\d+)/", k))}
    return len(found)


def tensors(arrays: Arrays) -> dict[str, Tensor]:
    prefix = arrays.prefix if isinstance(arrays, Named) else ""
    return Named({k: torch.from_numpy(np.asarray(v)) for k, v in arrays.items()}, prefix)


def rollout_of(arrays: Arrays) -> Rollout:
    t = tensors(arrays)
    return Rollout(
        observations=t["observations"],
        actions=t["actions"].long(),
        rewards=t["rewards"],
        discounts=t["discounts"].to(t["rewards"].dtype),
        behaviour_logits=t["behaviour_logits"],
    )
