from __future__ import annotations

import dataclasses
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from discorl.envs.tasks.grid import Grid
from discorl.envs.tasks.grid_tasks import GRID_TASKS, GridTask, Objects, wall_cells
from discorl.errors import DiscorlError
from tests.builders import rng

UP, RIGHT, DOWN, LEFT, STAY = range(5)
TREASURE = Objects(1, 1, 0, 0)


def reachable(walls: Tensor, size: int) -> bool:
    """Whether one can walk from any free cell to any other."""
    free = {(r, c) for r in range(size) for c in range(size) if not walls[r, c]}
    todo = [next(iter(free))]
    seen = set(todo)
    while todo:
        r, c = todo.pop()
        new = {(r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)} & free - seen
        seen |= new
        todo += new
    return seen == free


@pytest.mark.parametrize("kind", ["middle", "cross", "random"])
def test_walls_cut_nothing_off(kind: Literal["middle", "cross", "random"]) -> None:
    task = GridTask((5, 8), (TREASURE,), 10, walls=kind, num_walls=(0, 4))
    walls = wall_cells(task, 60, rng())
    assert walls.shape == (60, 65) and walls[:, -1].all()
    boards = walls[:, :-1].unflatten(1, (8, 8))
    sizes = (~boards).any(1).sum(1)
    assert sizes.unique().tolist() == [5, 6, 7, 8]
    assert all(reachable(board, 8) for board in boards)
    inner = boards.sum((1, 2)) - (64 - sizes**2)
    if kind == "random":
        assert inner.unique().tolist() == [0, 1, 2, 3, 4]
    elif kind == "middle":
        assert torch.equal(inner, sizes - 2)
    else:
        assert torch.equal(inner, 2 * (sizes - 2) - 1)


@pytest.mark.parametrize(
    "name, shape",
    [
        ("dense", (11 * 11 * 2**4,)),
        ("sparse", (13 * 13,)),
        ("long", (11 * 11 * 2**2,)),
        ("longer", (9 * 9 * 2**2,)),
        ("long-dense", (11 * 11 * 2**4,)),
        ("random-dense", (4, 11, 11)),
        ("random-long", (3, 11, 11)),
        ("random-small", (4, 7, 7)),
        ("random-sparse", (3, 7, 7)),
        ("random-very-dense", (2, 11, 11)),
        ("sampled", (5, 8, 8)),
        ("sampled-tabular", (8 * 8 * 2**3,)),
    ],
)
def test_shapes_of_the_named(name: str, shape: tuple[int, ...]) -> None:
    assert Grid(1, GRID_TASKS[name]).spec.observation_shape == shape


def towards(env: Grid, agent: Tensor, goal: Tensor) -> Tensor:
    """The move that goes to the row of the goal, then to its column."""
    rows = goal // env.size - agent // env.size
    columns = goal % env.size - agent % env.size
    across = torch.where(columns > 0, RIGHT, torch.where(columns < 0, LEFT, STAY))
    return torch.where(rows > 0, DOWN, torch.where(rows < 0, UP, across))


def test_going_straight_for_the_one_object_of_random_very_dense() -> None:
    """It is collected once for every time its distance has been walked."""
    env = Grid(64, GRID_TASKS["random-very-dense"])
    generator = rng()
    state, _ = env.reset(generator)
    due = collected = torch.zeros(64)
    for _ in range(200):
        arriving = (state.agent - state.cells[:, 0]).abs()
        due = due + ((arriving == 1) | (arriving == 11)).float()
        state, now = env.step(state, towards(env, state.agent, state.cells[:, 0]), generator)
        collected = collected + now.reward
    assert collected.min() > 15, "the mean distance is about 22 / 3"
    assert (collected <= due).all()


def test_going_for_the_good_end_of_sparse_tasks_succeeds() -> None:
    for name in ("sparse", "random-sparse"):
        env = Grid(200, GRID_TASKS[name])
        generator = rng()
        settings = env.sample_settings(200, generator)
        state, _ = env.reset(generator, settings)
        goal = state.cells[:, 0]
        total, over = torch.zeros(200), torch.zeros(200, dtype=torch.bool)
        for _ in range(26):
            state, now = env.step(state, towards(env, state.agent, goal), generator)
            total += now.reward * ~over
            over |= now.discount == 0
        assert over.all()
        assert total.unique().tolist() == [-1, 1]
        assert (total == env.spec.success_return).float().mean() > 0.7, "few meet a trap first"


def test_the_sampled_distribution() -> None:
    settings = Grid(1, GRID_TASKS["sampled"]).sample_settings(2000, rng())
    assert (settings.horizon.min(), settings.horizon.max()) == (20, 100)
    assert settings.reward[:, :2].min() >= 0, "the first type is good"
    assert settings.reward[:, 2:].min() < -0.9 and settings.reward.max() > 0.9
    assert torch.equal(settings.reward[:, 0], settings.reward[:, 1]), "a type has one reward"
    assert 0.01 <= settings.terminate.min() < 0.02 and 0.9 < settings.terminate.max() <= 1
    there = settings.respawn[settings.exists]
    assert 0.001 <= there.min() < 0.002 and 0.09 < there.max() <= 0.1
    assert settings.exists.sum(1).unique().tolist() == [3, 4, 5, 6]
    assert settings.respawn[~settings.exists].max() == 0, "what does not exist never comes"


def test_impossible_worlds_are_refused() -> None:
    objects = (TREASURE,)
    possible: dict[str, Any] = {"size": 3, "objects": objects, "horizon": 9}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"size": 1}, "size of a grid world must be"),
        ({"size": 65}, "size of a grid world must be"),
        ({"size": 2, "walls": "middle"}, "needs a grid world of size 3"),
        ({"horizon": 0}, "horizon must be"),
        ({"objects": ()}, "needs at least one type of object"),
        ({"objects": (Objects(4, 1, 0, 0),)}, "too small for 4 objects"),
        ({"random_layout": True}, "set tabular=False"),
        ({"walls": "random", "num_walls": 2}, "num_walls must be"),
    ]
    for change, message in wrong:
        with pytest.raises(DiscorlError, match=message):
            GridTask(**(possible | change))
    cases: list[dict[str, Any]] = [{"terminate": 1.5}, {"respawn": -1}, {"count": -1}]
    for bad in (*cases, {"respawn": (0.0, 0.5)}):
        with pytest.raises(DiscorlError, match=r"must be|above 0"):
            dataclasses.replace(TREASURE, **bad)
    with pytest.raises(DiscorlError, match="4, 5 or 9 moves, not 6"):
        Grid(1, GridTask(3, objects, 9), num_actions=6)
