from __future__ import annotations

import numpy as np
import pytest

from discorl.envs.suites import minatar
from discorl.errors import DiscorlError
from tests.envs.suites.streams import check, make, needs, play

pytestmark = needs("minatar")
CHANNELS = {"asterix": 4, "breakout": 4, "freeway": 7, "seaquest": 10, "space_invaders": 6}


@pytest.mark.parametrize("game", minatar.GAMES)
def test_games(game: str) -> None:
    stream = check(f"minatar:{game}", num_steps=60)
    assert stream.observations[0].shape == (2, 10, 10, CHANNELS[game])
    assert set(np.unique(stream.observations)) == {0, 255}


def test_an_episode_ends_and_another_begins() -> None:
    stream = play(make("minatar:breakout"), 60)
    ends = [t for t in range(60) if stream.terminated[t][0]]
    assert ends, "idle and random play loses the ball"
    first = stream.observations[ends[0] + 1][0]
    bricks = first[..., 3]
    assert (bricks[1:4] == 255).all() and (bricks[4:] == 0).all(), "three whole rows of bricks"
    assert not np.array_equal(stream.infos[ends[0] + 1]["final_obs"][0], first)
    assert not any(cut.any() for cut in stream.truncated)


def test_minimal_actions() -> None:
    full = make("minatar:breakout")
    minimal = make("minatar:breakout", full_actions=False)
    assert full.single_action_space.n == 6  # type: ignore[attr-defined]
    assert minimal.single_action_space.n == 3  # type: ignore[attr-defined]
    minimal.reset(seed=0)
    paddles = []
    for _ in range(12):
        shown, *_ = minimal.step(np.array([2]))  # right, the sixth action's fourth
        paddles.append(int(shown[0, 9, :, 0].argmax()))
    assert max(paddles) > 5


def test_an_episode_does_not_start_with_the_last_action_of_another() -> None:
    """With actions that always stick, the first is 'do nothing', seed or no seed."""
    envs = make("minatar:breakout", sticky=1.0)
    envs.reset(seed=0)
    envs.envs[0].unwrapped._game.last_action = 3  # type: ignore[attr-defined]
    envs.reset(seed=0)
    shown, *_ = envs.step(np.array([1]))
    assert shown[0, 9, :, 0].argmax() == 4, "the paddle stays in the middle"


def test_bad_input() -> None:
    with pytest.raises(DiscorlError, match="did you mean breakout"):
        make("minatar:breakut")
    with pytest.raises(DiscorlError, match="sticky must be a probability"):
        make("minatar:breakout", sticky=-0.1)
