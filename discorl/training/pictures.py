"""Pictures of observations, for environments that cannot draw themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discorl.types import EnvSpec

Frame = NDArray[np.uint8]  # [H, W, 3]

LONGER_SIDE = 320
"""Pixels of the longer side, or a little more: cells are whole multiples."""
LARGE = 32
"""Pixels of the shorter side from which several channels of bytes are frames, not planes."""
BACKGROUND = np.array([24, 28, 35], np.float64)
PLANES = [
    np.array([*bytes.fromhex(colour)], np.float64)
    for colour in ["f0f0f0", "56b4e9", "f0803c", "009e73", "f2c230", "cc79a7", "0072b2", "a0a0a0"]
]
"""A colour for each plane of a grid; further planes start over."""


def draw_episode(
    observations: list[Any], spec: EnvSpec | None = None, num_stacked: int = 1
) -> list[Frame]:
    """A picture of each observation [...], all on one scale.

    ``spec`` says which are images, whose channels come first; others are guessed at. Of
    ``num_stacked`` frames the newest is drawn.
    """
    name = most_like_a_picture(observations[0])
    arrays = np.stack([(x[name] if isinstance(x, dict) else x).cpu().numpy() for x in observations])
    if arrays.ndim == 4:
        is_image = is_image_called(spec, name)
        if is_channels_first(arrays.shape[1:], is_image):
            arrays = np.moveaxis(arrays, 1, -1)
        channels, rest = divmod(arrays.shape[-1], num_stacked)
        if is_image and not rest:
            arrays = arrays[..., -channels:]
    drawn = _pixels(arrays) if _has_pixels(arrays) else _grid(arrays.astype(np.float64))
    return [enlarge(frame) for frame in drawn]


def is_channels_first(shape: Sequence[int], is_image: bool) -> bool:
    """Whether channels or planes are the first of three axes rather than the last."""
    return is_image or shape[0] < shape[-1]  # the shorter axis holds the channels


def most_like_a_picture(observation: Any) -> str:
    """Of several tensors, the one with the axes of a picture; '' if there is only one."""
    if not isinstance(observation, dict):
        return ""
    tensors = sorted(observation.items())
    return max(tensors, key=lambda item: (min(item[1].ndim, 3), item[1].numel()))[0]


def is_image_called(spec: EnvSpec | None, name: str) -> bool:
    """Whether the tensor of that name is an image by the environment's word."""
    if spec is None:
        return False
    return spec.observations[name].is_image if spec.observations else spec.is_image


def _has_pixels(arrays: np.ndarray) -> bool:
    """Bytes with colours or one channel, or too large to be the planes of a board."""
    if arrays.dtype != np.uint8 or arrays.ndim != 4:
        return False
    return arrays.shape[-1] in (1, 3) or min(arrays.shape[1:3]) >= LARGE


def _pixels(images: np.ndarray) -> Frame:
    """Colour as it is; of grey frames in a stack, the last. [T, H, W, C] -> [T, H, W, 3]"""
    return images if images.shape[-1] == 3 else np.repeat(images[..., -1:], 3, axis=-1)


def _grid(arrays: np.ndarray) -> Frame:
    """Numbers: each plane adds its colour, as bright as its value. [T, ...] -> [T, H, W, 3]"""
    while arrays.ndim < 3:
        arrays = arrays[:, None]  # a vector is a row of cells
    arrays = arrays.reshape(*arrays.shape[:3], -1)
    top = np.abs(arrays).max() or 1.0
    # Values below zero are drawn darker than the background.
    share = (arrays / top)[..., None]  # [T, H, W, C, 1]
    colours = np.array([PLANES[i % len(PLANES)] for i in range(arrays.shape[-1])]) - BACKGROUND
    return (BACKGROUND + (share * colours).sum(-2)).clip(0, 255).astype(np.uint8)


def enlarge(frame: Frame) -> Frame:
    """Cells as whole squares, both sides even: video codecs require it."""
    times = max(1, -(-LONGER_SIDE // max(frame.shape[:2])))
    frame = np.repeat(np.repeat(frame, times, axis=0), times, axis=1)
    rows, columns = (n % 2 for n in frame.shape[:2])
    return np.pad(frame, ((0, rows), (0, columns), (0, 0)), mode="edge")
