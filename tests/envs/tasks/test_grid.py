from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from discorl import tree
from discorl.envs.tasks.grid import MOVES, Grid, GridState
from discorl.envs.tasks.grid_tasks import GRID_TASKS, GridTask, Objects
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
    for old in (state.cells[:, 0], state.agent):  # where things were says nothing of where they are
        for new in (after.cells[:, 0], after.agent):
            assert abs((new == old).float().mean() - 1 / 9) < 0.02


def test_fixed_layouts_belong_to_the_task() -> None:
    env = Grid(40, GridTask(5, (TREASURE, TRAP), 1))
    state, first = env.reset(rng(1))
    assert len(positions(env, state).unique(dim=0)) == 1
    again, now = env.step(state, torch.full((40,), STAY), rng(2))
    assert torch.equal(positions(env, again), positions(env, state))
    assert torch.equal(now.observation, first.observation)
    many, _ = env.reset(rng(), env.sample_settings(40, rng()))
    assert len(positions(env, many).unique(dim=0)) > 30


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


def test_settings_of_a_population() -> None:
    """Each agent's copies share a task."""
    env = Grid(12, GRID_TASKS["sampled-tabular"])
    settings = tree.map(lambda x: x.repeat_interleave(4, 0), env.sample_settings(3, rng()))
    state, _ = env.reset(rng(), settings)
    assert len(positions(env, state).unique(dim=0)) == 3
