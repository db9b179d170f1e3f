from __future__ import annotations

import dataclasses
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from discorl import tree
from discorl.envs.grid import MOVES, Grid, GridState
from discorl.envs.grid_tasks import GRID_TASKS, GridTask, Objects, wall_cells
from discorl.errors import DiscorlError
from tests.builders import rng

UP, RIGHT, DOWN, LEFT, STAY = range(5)
TREASURE, TRAP = Objects(1, 1, 0, 0), Objects(1, -1, 1, 0)


def at(env: Grid, state: GridState, agent: int, *cells: int) -> GridState:
    """The agent and the objects put in these cells."""
    return state._replace(
        agent=torch.full_like(state.agent, agent),
        cells=torch.tensor([cells]).expand(env.num_envs, -1),
    )


def walk(env: Grid, state: GridState, *actions: int) -> tuple[GridState, list[tuple[float, float]]]:
    """(reward, discount) of one copy after each action."""
    seen = []
    for step, action in enumerate(actions):
        state, now = env.step(state, torch.tensor([action]), rng(step))
        seen.append((now.reward.item(), now.discount.item()))
    return state, seen


# --- moving --------------------------------------------------------------------------------------


def test_moves_on_an_open_board() -> None:
    """From the middle of a 3x3 board every move leads to its neighbour; corners hold."""
    env = Grid(9, GridTask(3, (TREASURE,), 100), num_actions=9)
    state, _ = env.reset(rng())
    moved, _ = env.step(at(env, state, 4, 0), torch.arange(9), rng())
    assert moved.agent.tolist() == [1, 5, 7, 3, 4, 0, 2, 8, 6]
    held, _ = env.step(at(env, state, 0, 8), torch.arange(9), rng())
    assert held.agent.tolist() == [0, 1, 3, 0, 0, 0, 0, 4, 0]
    assert len(MOVES) == len(set(MOVES)) == 9


def test_walls_hold() -> None:
    env = Grid(1, GridTask(5, (TREASURE,), 100, walls="middle"))
    state, _ = env.reset(rng())
    walls = state.settings.walls[0, :-1].unflatten(0, (5, 5)).int().tolist()
    assert walls == [[0, 0, int(row not in (1, 3)), 0, 0] for row in range(5)]
    state, _ = walk(env, at(env, state, 1, 24), RIGHT)
    assert state.agent.item() == 1
    state, _ = walk(env, state, DOWN, RIGHT, RIGHT, UP, LEFT)
    assert state.agent.item() == 3, "through the gap, and up to the wall from the other side"


def test_shuffled_actions() -> None:
    env = Grid(60, GridTask(3, (TREASURE,), 100), 4, shuffle_actions=True)
    settings = env.sample_settings(60, rng())
    assert settings.actions is not None and len(settings.actions.unique(dim=0)) > 15
    state, _ = env.reset(rng(), settings)
    for action in range(4):
        moved, _ = env.step(at(env, state, 4, 0), torch.full((60,), action), rng())
        targets = torch.tensor([1, 5, 7, 3])[settings.actions[:, action]]
        assert torch.equal(moved.agent, targets)


# --- objects -------------------------------------------------------------------------------------


def test_an_episode_by_hand() -> None:
    """A treasure that stays away, then a trap that ends the episode."""
    env = Grid(1, GridTask(3, (TREASURE, TRAP), 100))
    start, _ = env.reset(rng())
    state, seen = walk(env, at(env, start, 0, 1, 2), RIGHT, LEFT, RIGHT)
    assert seen == [(1, 1), (0, 1), (0, 1)], "collected once"
    assert state.present.tolist() == [[False, True]]
    state, seen = walk(env, state, RIGHT)
    assert seen == [(-1, 0)]
    assert state.agent.item() == start.agent.item(), "the next episode has begun at home"
    assert state.present.tolist() == [[True, True]]


def test_the_horizon_is_an_end() -> None:
    env = Grid(3, GridTask(3, (TREASURE,), (1, 3)))
    settings = env.sample_settings(3, rng())._replace(horizon=torch.tensor([1, 2, 3]))
    state, _ = env.reset(rng(), settings)
    ends = []
    for step in range(6):
        state, now = env.step(state, torch.full((3,), STAY), rng(step))
        ends.append((1 - now.discount).int().tolist())
    assert ends == [[1, 0, 0], [1, 1, 0], [1, 0, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]]


def test_an_object_that_returns_at_once_is_always_there() -> None:
    env = Grid(1, GridTask(3, (Objects(1, 1, 0, 1),), 100))
    state, _ = env.reset(rng())
    _, seen = walk(env, at(env, state, 0, 1), RIGHT, STAY, LEFT, RIGHT)
    assert [reward for reward, _ in seen] == [1, 1, 0, 1]


def test_chances_to_end_and_to_return() -> None:
    """Two halves of the copies with different chances; the object is collected by everyone."""
    num = 8000
    env = Grid(num, GridTask(3, (Objects(1, 1, (0.1, 0.5), (0.05, 0.4)),), 1000))
    first = torch.arange(num)[:, None] < num // 2
    settings = env.sample_settings(num, rng())._replace(
        terminate=torch.where(first, 0.1, 0.5), respawn=torch.where(first, 0.05, 0.4)
    )
    state, _ = env.reset(rng(), settings)
    state, now = env.step(at(env, state, 0, 1), torch.full((num,), RIGHT), rng(1))
    assert now.reward.unique().tolist() == [1]
    for half, end, back in ((first[:, 0], 0.1, 0.05), (~first[:, 0], 0.5, 0.4)):
        assert abs((now.discount[half] == 0).float().mean() - end) < 0.03
        going = half & (now.discount == 1)
        assert abs(state.present[going].float().mean() - back) < 0.03
    missing = ~state.present[:, 0]
    state, _ = env.step(state, torch.full((num,), STAY), rng(2))
    back = state.present[missing & first[:, 0]].float().mean()
    assert abs(back - 0.05) < 0.02, "the same chance at every step"


def test_two_objects_of_a_type_and_rewards_of_their_own() -> None:
    env = Grid(1, GridTask(3, (Objects(2, 0.5, 0, 0), Objects(1, -0.25, 0, 0)), 9))
    state, now = env.reset(rng())
    assert now.observation.shape == (1, 9 * 2**3)
    _, seen = walk(env, at(env, state, 0, 1, 2, 5), RIGHT, RIGHT, DOWN)
    assert [reward for reward, _ in seen] == [0.5, 0.5, -0.25]


# --- layouts -------------------------------------------------------------------------------------


def positions(env: Grid, state: GridState) -> Tensor:
    """Cells of everything that is there; others get numbers of their own. [B, K + 1]"""
    others = env.size**2 + torch.arange(state.cells.shape[1])
    return torch.cat([torch.where(state.present, state.cells, others), state.agent[:, None]], 1)


def assert_apart(env: Grid, state: GridState) -> None:
    """No two things in a cell, nothing in a wall."""
    cells = positions(env, state).sort(1).values
    assert (cells.diff(dim=1) != 0).all()
    walls = torch.nn.functional.pad(state.settings.walls[:, :-1], (0, cells.shape[1]))
    assert not walls.gather(1, cells).any()


@pytest.mark.parametrize("name", GRID_TASKS)
def test_everything_has_its_own_free_cell(name: str) -> None:
    env = Grid(300, GRID_TASKS[name])
    state, _ = env.reset(rng(), env.sample_settings(300, rng()))
    assert_apart(env, state)


CROWDED = GridTask(3, (Objects(2, 1, 0, 0), TRAP), 9, random_layout=True, tabular=False)


@pytest.mark.parametrize(
    "task", [CROWDED, *(task for task in GRID_TASKS.values() if task.random_layout)]
)
def test_what_returns_comes_to_a_free_cell(task: GridTask) -> None:
    often = tuple(dataclasses.replace(x, respawn=0.5, terminate=0) for x in task.objects)
    env = Grid(300, dataclasses.replace(task, objects=often))
    generator = rng()
    state, _ = env.reset(generator, env.sample_settings(300, generator))
    returned = 0
    for _ in range(60):
        before, actions = state, torch.randint(5, (300,), generator=generator)
        state, now = env.step(state, actions, generator)
        assert_apart(env, state)
        kept = (now.discount == 1)[:, None] & before.present & (before.cells == state.cells)
        returned += int((state.present & ~kept).sum())
        stayed = (now.discount == 1)[:, None] & before.present & state.present
        moved = stayed & (before.cells != state.cells)
        assert (moved.sum(1) <= now.reward.ne(0).float()).all(), "only what was collected moves"
    assert returned > 50


def test_random_layouts_are_uniform_and_new_in_each_episode() -> None:
    env = Grid(6000, GridTask(3, (TREASURE,), 1, random_layout=True, tabular=False))
    state, _ = env.reset(rng())
    after, _ = env.step(state, torch.full((6000,), STAY), rng(1))
    for now in (state, after):
        pairs = (now.cells[:, 0] * 9 + now.agent).bincount(minlength=81).unflatten(0, (9, 9))
        assert pairs.diagonal().sum() == 0
        assert pairs[~torch.eye(9, dtype=torch.bool)].min() > 50  # 83 expected
    assert abs((after.cells == state.cells).float().mean() - 1 / 9) < 0.02


def test_fixed_layouts_belong_to_the_task() -> None:
    env = Grid(40, GridTask(5, (TREASURE, TRAP), 1))
    state, first = env.reset(rng(1))
    assert len(positions(env, state).unique(dim=0)) == 1
    again, now = env.step(state, torch.full((40,), STAY), rng(2))
    assert torch.equal(positions(env, again), positions(env, state))
    assert torch.equal(now.observation, first.observation)
    many, _ = env.reset(rng(), env.sample_settings(40, rng()))
    assert len(positions(env, many).unique(dim=0)) > 30


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


# --- observations --------------------------------------------------------------------------------


def test_boards_show_what_is_where() -> None:
    task = GridTask(
        (3, 4),
        (Objects(2, 1, 0, 0), TRAP),
        9,
        random_layout=True,
        tabular=False,
        walls="random",
        num_walls=1,
    )
    env = Grid(1, task)
    state, _ = env.reset(rng())
    walls = torch.zeros(1, 17, dtype=torch.bool)
    walls[0, [5, 16]] = True
    state = at(env, state._replace(settings=state.settings._replace(walls=walls)), 0, 4, 15, 2)
    state, now = env.step(state, torch.tensor([RIGHT]), rng())
    marks = [[(r, c) for r, c in board.nonzero().tolist()] for board in now.observation[0]]
    assert marks == [[(1, 0), (3, 3)], [(0, 2)], [(0, 1)], [(1, 1)]]
    state, _ = env.step(state, torch.tensor([LEFT]), rng())
    state, now = env.step(state, torch.tensor([DOWN]), rng())
    assert now.reward.item() == 1
    assert now.observation[0, 0].nonzero().tolist() == [[3, 3]], "collected"
    assert now.observation[0].sum() == 4


def test_an_index_for_every_state() -> None:
    """Agent in 4 cells x treasures there or not; the trap ends the episode and needs no bit."""
    env = Grid(16, GridTask(3, (Objects(2, 1, 0, 0.1), TRAP), 9))
    state, now = env.reset(rng())
    assert now.observation.shape == (16, 9 * 4)
    seen = set()
    for agent in range(9):
        for present in ((True, True), (True, False), (False, True), (False, False)):
            here = state._replace(
                agent=torch.full((16,), agent),
                present=torch.tensor([[*present, True]]).expand(16, -1),
                cells=torch.full((16, 3), 8 - agent if agent != 4 else 0),
                settings=state.settings._replace(respawn=torch.zeros(16, 3)),
            )
            _, now = env.step(here, torch.full((16,), STAY), rng())
            assert now.observation.sum(1).tolist() == [1] * 16
            seen.add(now.observation[0].argmax().item())
    assert seen == set(range(36))


# --- the published tasks -------------------------------------------------------------------------


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


def test_settings_of_a_population() -> None:
    """Each agent's copies share a task."""
    env = Grid(12, GRID_TASKS["sampled-tabular"])
    settings = tree.map(lambda x: x.repeat_interleave(4, 0), env.sample_settings(3, rng()))
    state, _ = env.reset(rng(), settings)
    assert len(positions(env, state).unique(dim=0)) == 3


def test_impossible_worlds_are_refused() -> None:
    objects = (TREASURE,)
    possible: dict[str, Any] = {"size": 3, "objects": objects, "horizon": 9}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"size": 1}, "size of a grid world must be"),
        ({"size": 65}, "size of a grid world must be"),
        ({"size": 2, "walls": "middle"}, "needs a grid world of size 3"),
        ({"horizon": 0}, "horizon must be"),
        ({"objects": ()}, "needs a type of object"),
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
