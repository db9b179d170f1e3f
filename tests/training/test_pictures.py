"""Pictures of observations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from discorl.training.pictures import BACKGROUND, LONGER_SIDE, PLANES, draw_episode
from discorl.types import EnvSpec


def test_a_board_becomes_squares() -> None:
    board = torch.zeros(4, 2)
    board[1, 0] = 1.0
    (frame,) = draw_episode([board])
    cell = LONGER_SIDE // 4
    assert frame.shape == (4 * cell, 2 * cell, 3) and frame.dtype == np.uint8
    assert frame[cell, 0].tolist() == PLANES[0].tolist()
    assert frame[cell - 1, 0].tolist() == BACKGROUND.tolist()
    assert frame[cell, cell].tolist() == BACKGROUND.tolist()


@pytest.mark.parametrize("shape", [(2, 5, 6), (5, 6, 2)])
def test_planes_have_colours_in_either_order(shape: tuple[int, ...]) -> None:
    planes = torch.zeros(shape)
    where = (1, 3, 4) if shape[0] == 2 else (3, 4, 1)
    planes[where] = 1.0
    (frame,) = draw_episode([planes])
    cell = frame.shape[1] // 6
    assert frame[3 * cell, 4 * cell].tolist() == PLANES[1].tolist()


def test_an_episode_has_one_scale() -> None:
    dim, bright = draw_episode([torch.tensor([[0.5]]), torch.tensor([[1.0]])])
    assert BACKGROUND[0] < dim[0, 0, 0] < bright[0, 0, 0]


def test_pixels_stay_as_they_are() -> None:
    colour = torch.randint(256, (3, 400, 500), dtype=torch.uint8)
    (frame,) = draw_episode([colour])
    np.testing.assert_array_equal(frame, colour.permute(1, 2, 0).numpy())
    stack = torch.randint(256, (4, 84, 84), dtype=torch.uint8)
    (grey,) = draw_episode([stack])
    times = grey.shape[0] // 84
    np.testing.assert_array_equal(grey[::times, ::times, 0], stack[-1].numpy())


@pytest.mark.parametrize("planes, num_stacked", [(4, 1), (21, 1), (16, 4)])
def test_boards_of_bytes_show_all_planes_of_the_newest(planes: int, num_stacked: int) -> None:
    """MinAtar, MiniGrid, and Sokoban in stacks; with many planes the shape alone would mislead."""
    board = torch.zeros(planes, 7, 6, dtype=torch.uint8)
    first = planes - planes // num_stacked
    board[first + 1, 3, 4] = 255
    board[0 if first else 2, 5, 5] = 255  # in an older frame, if there is one
    spec = EnvSpec((planes, 7, 6), 3, is_image=True, observation_dtype=torch.uint8)
    (frame,) = draw_episode([board], spec, num_stacked)
    cell = frame.shape[0] // 7
    assert frame.shape[:2] == (7 * cell, 6 * cell)
    assert frame[3 * cell, 4 * cell].tolist() == PLANES[1].tolist()
    old = BACKGROUND if first else PLANES[2]
    assert frame[5 * cell, 5 * cell].tolist() == old.tolist()


def test_the_newest_of_coloured_frames() -> None:
    stack = torch.randint(256, (12, 400, 500), dtype=torch.uint8)
    spec = EnvSpec((12, 400, 500), 3, is_image=True, observation_dtype=torch.uint8)
    (frame,) = draw_episode([stack], spec, 4)
    np.testing.assert_array_equal(frame, stack[-3:].permute(1, 2, 0).numpy())


@pytest.mark.parametrize(
    "observation",
    [
        torch.tensor(3.0),
        torch.linspace(-1, 1, 7),
        torch.zeros(3, 3),
        torch.rand(2, 3, 4, 5),
        {"text": torch.zeros(50), "view": torch.rand(3, 7, 7)},
    ],
    ids=["scalar", "vector", "nothing", "four axes", "dict"],
)
def test_anything_can_be_drawn(observation: object) -> None:
    for frame in draw_episode([observation, observation]):
        assert frame.ndim == 3 and frame.shape[2] == 3 and frame.dtype == np.uint8
        assert frame.shape[0] % 2 == 0 and frame.shape[1] % 2 == 0
