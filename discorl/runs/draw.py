"""Pictures of observations, for environments that cannot draw themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Frame = NDArray[np.uint8]  # [H, W, 3]

LONGER_SIDE = 320
"""Pixels of the longer side, or a little more: cells are whole multiples."""
BACKGROUND = np.array([24, 28, 35], np.float64)
PLANES = np.array(
    [
        (240, 240, 240),
        (86, 180, 233),
        (240, 128, 60),
        (0, 158, 115),
        (242, 194, 48),
        (204, 121, 167),
        (0, 114, 178),
        (160, 160, 160),
    ],
    np.float64,
)
"""A colour for each plane of a grid; more planes begin again."""


def draw_episode(observations: list[Any]) -> list[Frame]:
    """A picture of each observation [...], all on one scale."""
    arrays = np.stack([_picture_like(x) for x in observations])
    if arrays.dtype == np.uint8 and arrays.ndim == 4:
        drawn = _image(arrays)
    else:
        drawn = _grid(arrays.astype(np.float64))
    return [enlarge(frame) for frame in drawn]


def _picture_like(observation: Any) -> np.ndarray:
    """The one tensor, or of several the one that looks most like a picture."""
    if isinstance(observation, dict):
        tensors = sorted(observation.items())
        _, observation = max(tensors, key=lambda item: (min(item[1].ndim, 3), item[1].numel()))
    return observation.cpu().numpy()


def _image(images: np.ndarray) -> Frame:
    """Bytes: colour as it is; of grey frames in a stack, the last. [T, ...] -> [T, H, W, 3]"""
    images = _channels_last(images)
    if images.shape[-1] == 3:
        return images
    return np.repeat(images[..., -1:], 3, axis=-1)


def _grid(arrays: np.ndarray) -> Frame:
    """Numbers: each plane adds its colour, as bright as its value. [T, ...] -> [T, H, W, 3]"""
    while arrays.ndim < 3:
        arrays = arrays[:, None]  # a vector is a row of cells
    if arrays.ndim == 3:
        arrays = arrays[..., None]
    arrays = arrays.reshape(len(arrays), *arrays.shape[1:3], -1) if arrays.ndim > 4 else arrays
    planes = _channels_last(arrays)
    top = np.abs(planes).max() or 1.0
    # Values below zero are drawn darker than the background.
    share = (planes / top)[..., None]  # [T, H, W, C, 1]
    colours = PLANES[np.arange(planes.shape[-1]) % len(PLANES)] - BACKGROUND
    return (BACKGROUND + (share * colours).sum(-2)).clip(0, 255).astype(np.uint8)


def _channels_last(arrays: np.ndarray) -> np.ndarray:
    """The shorter of the first and the last axis holds the channels. [T, ., ., .]"""
    return np.moveaxis(arrays, 1, -1) if arrays.shape[1] < arrays.shape[-1] else arrays


def enlarge(frame: Frame) -> Frame:
    """Cells as whole squares, both sides even: video codecs want it so."""
    times = max(1, -(-LONGER_SIDE // max(frame.shape[:2])))
    frame = np.repeat(np.repeat(frame, times, axis=0), times, axis=1)
    rows, columns = (n % 2 for n in frame.shape[:2])
    return np.pad(frame, ((0, rows), (0, columns), (0, 0)), mode="edge")
