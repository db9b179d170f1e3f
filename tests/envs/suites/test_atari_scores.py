from __future__ import annotations

import pytest

from discorl.envs.suites.atari_scores import GAMES, SCORES, human_normalised
from discorl.errors import DiscorlError


@pytest.mark.parametrize(
    "game, random, human",
    [
        ("Alien", 227.8, 7127.7),
        ("Breakout", 1.7, 30.5),
        ("DoubleDunk", -18.6, -16.4),
        ("MontezumaRevenge", 0.0, 4753.3),
        ("Pong", -20.7, 14.6),
        ("Qbert", 163.9, 13455.0),
        ("Skiing", -17098.1, -4336.9),
        ("SpaceInvaders", 148.0, 1668.7),
        ("Zaxxon", 32.5, 9173.3),
    ],
)
def test_known_scores(game: str, random: float, human: float) -> None:
    assert SCORES[game] == (random, human)
    assert human_normalised(game, random) == 0
    assert human_normalised(game, human) == 1


def test_57_games_and_humans_beat_chance() -> None:
    assert len(GAMES) == 57
    assert list(GAMES) == sorted(GAMES)
    assert all(human > random for random, human in SCORES.values())


def test_dqns_score_on_breakout() -> None:
    """Mnih et al. (2015) report 401.2 points, which they call 1327 % of a human."""
    assert human_normalised("Breakout", 401.2) == pytest.approx(13.87, abs=0.01)
    assert human_normalised("breakout", 401.2) == human_normalised("Breakout", 401.2)


def test_an_unknown_game() -> None:
    with pytest.raises(DiscorlError, match="did you mean Pong"):
        human_normalised("Pongg", 1.0)
