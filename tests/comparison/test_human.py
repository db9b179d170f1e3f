"""Human-normalised scores."""

from __future__ import annotations

import pytest

from discorl.comparison.human import human_scale


@pytest.mark.parametrize("task", ["catch", "gym:CartPole-v1", "ale:NoSuchGame"])
def test_there_are_none_for_other_tasks(task: str) -> None:
    assert human_scale(task) is None


def test_atari_games_have_them() -> None:
    normalise = human_scale("ale:Pong")
    assert normalise is not None
    assert normalise(-20.7) == pytest.approx(0.0)
    assert normalise(14.6) == pytest.approx(1.0)
