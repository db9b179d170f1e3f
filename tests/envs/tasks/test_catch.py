from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from discorl import tree
from discorl.envs.registry import make_env
from discorl.envs.tasks.catch import Catch, CatchSettings, CatchState
from discorl.errors import DiscorlError
from tests.builders import rng

LEFT, STAY, RIGHT = 0, 1, 2


def state(ball_row: int, ball_column: int, paddle: int) -> CatchState:
    return CatchState(torch.tensor([ball_row]), torch.tensor([ball_column]), torch.tensor([paddle]))


def play(env: Catch, now: CatchState, *actions: int):
    """(board, reward, discount) after each action of one environment."""
    seen = []
    for action in actions:
        now, timestep = env.step(now, torch.tensor([action]), rng())
        seen.append(
            (timestep.observation[0].tolist(), timestep.reward.item(), timestep.discount.item())
        )
    return now, seen


def test_first_observation() -> None:
    env = Catch(5, rows=3, columns=4)
    now, timestep = env.reset(rng())
    assert timestep.observation.shape == (5, 3, 4)
    assert timestep.reward.tolist() == [0] * 5
    assert timestep.discount.tolist() == [1] * 5
    for b in range(5):
        board = torch.zeros(3, 4)
        board[0, now.ball_column[b]] = board[2, 2] = 1
        assert torch.equal(timestep.observation[b], board)


def test_a_catch_on_a_small_board() -> None:
    env = Catch(1, rows=3, columns=3)
    now, ((first, *first_rest), (_, *last_rest)) = play(env, state(0, 0, 1), STAY, LEFT)
    assert first == [[0, 0, 0], [1, 0, 0], [0, 1, 0]]
    assert first_rest == [0.0, 1.0]
    assert last_rest == [1.0, 0.0]
    assert (now.ball_row.item(), now.paddle.item()) == (0, 1), "the next episode has begun"


def test_a_miss_on_a_small_board() -> None:
    _, seen = play(Catch(1, rows=3, columns=3), state(0, 0, 1), STAY, STAY)
    assert [x[1:] for x in seen] == [(0.0, 1.0), (-1.0, 0.0)]


def test_the_end_shows_the_next_beginning() -> None:
    """With discount 0 comes the first observation of the next episode, not the last of this one."""
    env = Catch(1, rows=3, columns=3)
    now, seen = play(env, state(1, 0, 0), STAY)
    (board, reward, discount) = seen[0]
    assert (reward, discount) == (1.0, 0.0)
    assert sum(board[0]) == 1
    assert board[0][int(now.ball_column)] == 1
    assert board[1:] == [[0, 0, 0], [0, 1, 0]]
    _, ((_, reward, discount), *_) = play(env, now, STAY)
    assert (reward, discount) == (0.0, 1.0)


def test_a_whole_episode_on_the_default_board() -> None:
    """Seven steps; the paddle starts at column 4 and reaches column 0 with four to the left."""
    env = Catch(1)
    _, seen = play(env, state(0, 0, 4), LEFT, LEFT, STAY, LEFT, LEFT, STAY, STAY)
    assert [reward for _, reward, _ in seen] == [0, 0, 0, 0, 0, 0, 1]
    assert [discount for _, _, discount in seen] == [1, 1, 1, 1, 1, 1, 0]
    paddles = [board[7].index(1) for board, _, _ in seen[:6]]
    assert paddles == [3, 2, 2, 1, 0, 0]


def test_the_paddle_stops_at_the_walls() -> None:
    env = Catch(1, rows=9, columns=3)
    now, _ = play(env, state(0, 0, 1), LEFT, LEFT, LEFT)
    assert now.paddle.item() == 0
    now, _ = play(env, now, RIGHT, RIGHT, RIGHT, RIGHT)
    assert now.paddle.item() == 2


def slow_catch(
    rows: int, columns: int, ball: int, actions: list[int]
) -> tuple[list[list[int]], int]:
    """One episode in plain Python: the boards before each action, and the reward."""
    paddle, boards = columns // 2, []
    for row in range(rows - 1):
        boards.append(
            [
                int((r == row and c == ball) or (r == rows - 1 and c == paddle))
                for r in range(rows)
                for c in range(columns)
            ]
        )
        paddle = max(0, min(columns - 1, paddle + actions[row] - 1))
    return boards, 1 if paddle == ball else -1


@pytest.mark.parametrize("rows, columns", [(2, 1), (2, 2), (3, 3), (8, 8), (10, 5), (4, 9)])
def test_equals_a_plain_python_catch(rows: int, columns: int) -> None:
    env = Catch(6, rows, columns)
    generator, chance = rng(rows), random.Random(columns)
    now, timestep = env.reset(generator)
    for _ in range(5):
        balls = now.ball_column.tolist()
        actions = [[chance.randrange(3) for _ in range(rows - 1)] for _ in range(6)]
        episodes = [slow_catch(rows, columns, balls[b], actions[b]) for b in range(6)]
        for t in range(rows - 1):
            boards = [timestep.observation[b].flatten().int().tolist() for b in range(6)]
            assert boards == [episode[0][t] for episode in episodes]
            taken = torch.tensor([actions[b][t] for b in range(6)])
            now, timestep = env.step(now, taken, generator)
            ended = t == rows - 2
            assert timestep.discount.tolist() == [0.0 if ended else 1.0] * 6
            assert timestep.reward.tolist() == [e[1] if ended else 0 for e in episodes]


def trajectory(seed: int) -> Tensor:
    env, generator = Catch(4, 5, 5), rng(seed)
    now, timestep = env.reset(generator)
    boards = [timestep.observation]
    for t in range(20):
        now, timestep = env.step(now, torch.full((4,), t % 3), generator)
        boards.append(timestep.observation)
    return torch.stack(boards)


def test_a_seed_is_a_trajectory() -> None:
    assert torch.equal(trajectory(1), trajectory(1))
    assert not torch.equal(trajectory(1), trajectory(2))


def test_every_column_gets_its_ball() -> None:
    now, _ = Catch(2000, 3, 4).reset(rng())
    counts = torch.bincount(now.ball_column, minlength=4)
    assert counts.min() > 400


def test_steps_are_pure() -> None:
    env = Catch(1, 3, 3)
    before = state(1, 0, 1)
    env.step(before, torch.tensor([LEFT]), rng())
    assert before == state(1, 0, 1)


def test_settings_of_the_standard_game_change_nothing() -> None:
    """The general way of stepping plays the same game as the quick one."""
    env = Catch(200, 5, 4)
    quick, expected = env.reset(rng())
    general, _ = env.reset(rng(), env.sample_settings(200, rng()))
    general = general._replace(ball_column=quick.ball_column)
    for step in range(4):
        actions = torch.randint(3, (200,), generator=rng(step))
        quick, expected = env.step(quick, actions, rng(step))
        general, shown = env.step(general, actions, rng(step))
        assert torch.equal(shown.reward, expected.reward)
        assert torch.equal(shown.discount, expected.discount)
        if step < 3:
            assert torch.equal(shown.observation, expected.observation)
    assert expected.discount.max() == 0


def test_small_boards_lie_in_the_corner() -> None:
    """A 3x2 and a mirrored 2x3 board on one of 3x3, with rewards of their own."""
    env = Catch(2, (2, 3), (2, 3))
    settings = CatchSettings(
        rows=torch.tensor([3, 2]),
        columns=torch.tensor([2, 3]),
        paddle=torch.tensor([1, 1]),
        ball=torch.tensor([0, 2]),
        caught=torch.tensor([0.5, 2.0]),
        missed=torch.tensor([-0.5, 0.0]),
        mirrored=torch.tensor([False, True]),
    )
    now, timestep = env.reset(rng(), settings)
    first = timestep.observation.int().tolist()
    assert first == [[[1, 0, 0], [0, 0, 0], [0, 1, 0]], [[0, 0, 1], [0, 1, 0], [0, 0, 0]]]
    now, timestep = env.step(now, torch.tensor([RIGHT, LEFT]), rng())
    assert timestep.observation[0].int().tolist() == [[0, 0, 0], [1, 0, 0], [0, 1, 0]]
    assert timestep.observation[1].int().tolist() == first[1], "the next episode"
    assert (timestep.reward.tolist(), timestep.discount.tolist()) == ([0, 2], [1, 0])
    now, timestep = env.step(now, torch.tensor([RIGHT, RIGHT]), rng())
    assert (timestep.reward.tolist(), timestep.discount.tolist()) == ([-0.5, 0], [0, 0])
    assert timestep.observation.int().tolist() == first


def test_drawn_boards() -> None:
    env = Catch(600, (4, 8), (3, 5), caught=(0.5, 1.0), missed=(-1.0, -0.5), shuffle_actions=True)
    settings = env.sample_settings(600, rng())
    assert settings.rows.unique().tolist() == [4, 5, 6, 7, 8]
    assert settings.columns.unique().tolist() == [3, 4, 5]
    assert torch.equal(settings.paddle, settings.columns // 2)
    assert settings.caught.min() >= 0.5 and settings.missed.max() <= -0.5
    assert 250 < settings.mirrored.sum() < 350
    now, timestep = env.reset(rng(), settings)
    assert (now.ball_column < settings.columns).all()
    for step in range(7):  # following the ball always catches it, however short the fall
        shift = (now.ball_column - now.paddle).sign()
        actions = 1 + torch.where(settings.mirrored, -shift, shift)
        now, timestep = env.step(now, actions, rng(step))
        assert torch.equal(timestep.reward, settings.caught * (1 - timestep.discount))


def test_starts_can_be_part_of_the_task() -> None:
    env = Catch(5, 4, 6, fixed_starts=True)
    settings = env.sample_settings(300, rng())
    assert settings.ball.unique().tolist() == settings.paddle.unique().tolist() == [*range(6)]
    now, timestep = env.reset(rng(), settings := tree.index(settings, slice(5)))
    for step in range(3):
        now, timestep = env.step(now, torch.full((5,), STAY), rng(step))
    assert timestep.discount.max() == 0
    assert torch.equal(now.ball_column, settings.ball)
    assert torch.equal(now.paddle, settings.paddle)


def test_impossible_boards_are_refused() -> None:
    for args in ((2, 1, 3), (2, 3, 0), (0, 3, 3)):
        with pytest.raises(DiscorlError, match=r"at least|or more"):
            Catch(*args)


def test_names() -> None:
    assert make_env("catch", 2).spec.observation_shape == (8, 8)
    assert make_env("catch:10x5", 3).spec.observation_shape == (10, 5)
    assert make_env("catch:10x5", 3).num_envs == 3
    for name in ("Catch", "catch:10", "catch:axb", "catch:3x3x3", "", "pong"):
        with pytest.raises(DiscorlError, match=r"no environment is called .*use catch, "):
            make_env(name, 1)
