"""Observation spaces as tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from discorl.errors import DiscorlError, EnvFailure
from discorl.types import ObservationSpec

Path = tuple[str | int, ...]
"""Keys that lead through nested Dicts and Tuples to an array."""

MAX_ONE_HOT = 10_000
"""The largest Discrete observation: each becomes a vector of that length."""


@dataclass(frozen=True)
class Cast:
    """Numbers of one type, as they are."""

    dtype: np.dtype

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x, self.dtype)


@dataclass(frozen=True)
class ToImage:
    """Images, or stacks of images, [B, ...] -> [B, C, H, W].

    Two axes are one channel; of four, the first is a stack, which joins the channels.
    """

    dtype: np.dtype
    is_last: bool
    """Whether the channels are on the last axis."""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        x = np.asarray(x, self.dtype)
        if x.ndim == 3:
            return x[:, None]
        x = np.moveaxis(x, -1, -3) if self.is_last else x
        return x.reshape(len(x), -1, *x.shape[-2:])


@dataclass(frozen=True, eq=False)
class OneHot:
    """One-hot vectors of whole numbers, one after the other."""

    sizes: np.ndarray
    starts: np.ndarray
    who: str

    def __call__(self, x: np.ndarray) -> np.ndarray:
        number = x.reshape(len(x), -1).astype(np.int64) - self.starts
        wrong = ((number < 0) | (number >= self.sizes)).any(1)
        if wrong.any():
            raise EnvFailure(
                f"environment {int(wrong.argmax())} of {self.who} returned {x[wrong.argmax()]}, "
                "which is outside its Discrete observation space: fix the environment"
            )
        out = np.zeros((len(x), int(self.sizes.sum())), np.float32)
        offsets = np.cumsum(self.sizes) - self.sizes
        np.put_along_axis(out, number + offsets, 1, axis=1)
        return out


Conversion = Cast | ToImage | OneHot
"""What happens to a batch of arrays [B, *shape] before a network sees it. These are data, because
``deploy`` writes them once more with tensors, for files that know nothing of NumPy."""


@dataclass(frozen=True)
class Leaf:
    """One array of an observation, and the tensor that it becomes."""

    name: str
    path: Path
    shape: tuple[int, ...]
    """Of the array, without the batch."""
    dtype: np.dtype
    """Of the array."""
    spec: ObservationSpec
    convert: Conversion
    """A batch of arrays [B, *shape] -> [B, *spec.shape]"""
    is_vector: bool = False
    """Whether it holds plain numbers on one axis, which can be normalised."""

    def find(self, observation: Any) -> np.ndarray:
        """This array in an observation."""
        for key in self.path:
            observation = observation[key]
        return np.asarray(observation)

    def stack(self, observations: Sequence[Any], who: str) -> np.ndarray:
        """This array in each of several observations. [B, *shape]"""
        arrays = [self.find(observation) for observation in observations]
        for array in arrays:
            self.check(array.shape, who)
        return np.stack(arrays)

    def check(self, shape: tuple[int, ...], who: str) -> None:
        """Raise if an array is not what the space promised."""
        if shape != self.shape:
            what = f"observation '{self.name}'" if self.name else "an observation"
            raise EnvFailure(
                f"{who} returned {what} of shape {shape}, but its observation space promises "
                f"{self.shape}: fix the environment, or wrap it to pad or resize observations to "
                "one shape"
            )


def observation_leaves(
    space: gymnasium.Space, who: str, layout: str, path: Path = ()
) -> list[Leaf]:
    """The arrays of an observation; a single one has the empty path."""
    if isinstance(space, spaces.Dict):
        inner = [((*path, key), part) for key, part in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        inner = [((*path, i), part) for i, part in enumerate(space.spaces)]
    else:
        leaf = _leaf(space, path, who, layout)
        if not math.prod(leaf.spec.shape):
            raise DiscorlError(
                f"{who} has empty observations: its observation space {space} holds no numbers"
            )
        return [leaf]
    found = [leaf for p, part in inner for leaf in observation_leaves(part, who, layout, p)]
    if not found and not path:
        raise DiscorlError(f"{who} has no observations: its observation space {space} is empty")
    return found


def _leaf(space: gymnasium.Space, path: Path, who: str, layout: str) -> Leaf:
    name = "/".join(map(str, path))
    if isinstance(space, spaces.Box):
        return _box(space, name, path, layout)
    dtype = np.dtype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        shape, cast = tuple(map(int, space.shape)), Cast(np.dtype(np.float32))
        return Leaf(name, path, shape, dtype, ObservationSpec(shape), cast)
    if isinstance(space, spaces.Discrete):
        sizes, starts, shape = np.array([space.n]), np.array([space.start]), ()
    elif isinstance(space, spaces.MultiDiscrete):
        sizes, starts, shape = space.nvec.ravel(), np.ravel(space.start), space.nvec.shape
    else:
        where = f" at '{name}'" if name else ""
        raise DiscorlError(
            f"{who} has {type(space).__name__} observations{where}; only Box, Discrete, "
            "MultiDiscrete, MultiBinary, and Dict and Tuple of them are supported: wrap it with "
            "gymnasium.wrappers.TransformObservation"
        )
    total = int(sizes.sum())
    if total > MAX_ONE_HOT:
        raise DiscorlError(
            f"{who} has a Discrete observation with {total} values, but the limit for one-hot "
            f"vectors is {MAX_ONE_HOT}: wrap it with gymnasium.wrappers.TransformObservation"
        )
    convert = OneHot(sizes, starts, who)
    return Leaf(name, path, tuple(map(int, shape)), dtype, ObservationSpec((total,)), convert)


def _has_channels_last(shape: tuple[int, ...], layout: str) -> bool:
    *_, first, _, last = (0, *shape)
    return layout == "channels-last" or (layout == "auto" and first >= last)


def _box(space: spaces.Box, name: str, path: Path, layout: str) -> Leaf:
    shape = tuple(map(int, space.shape))
    is_bytes = space.dtype == np.uint8
    # Boards of small numbers stay small, for the sake of replay: NetHack's glyphs are int16.
    keep = is_bytes or (len(shape) > 1 and space.dtype in (np.int8, np.int16))
    number = np.dtype(space.dtype) if keep else np.dtype(np.float32)
    dtype = getattr(torch, str(space.dtype)) if keep else torch.float32
    if len(shape) in (3, 4) or (len(shape) == 2 and is_bytes):
        convert = ToImage(number, _has_channels_last(shape, layout))
        out = convert(np.empty((1, *shape), np.bool_)).shape[1:]
        spec = ObservationSpec(out, dtype, is_image=True)
        return Leaf(name, path, shape, np.dtype(space.dtype), spec, convert)
    is_vector = len(shape) == 1 and not is_bytes
    spec = ObservationSpec(shape, dtype)
    return Leaf(name, path, shape, np.dtype(space.dtype), spec, Cast(number), is_vector)
