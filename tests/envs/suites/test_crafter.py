from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import VectorEnv

from discorl.errors import DiscorlError
from tests.envs.suites import streams
from tests.envs.suites.streams import check, needs, play

pytestmark = needs("crafter")
SMALL = {"area": 16}  # worlds take time to make


def make(**options: Any) -> VectorEnv:
    return streams.make("crafter", **{**SMALL, **options})


def test_crafter() -> None:
    stream = check("crafter", num_steps=15, **SMALL)
    assert stream.observations[0].shape == (2, 64, 64, 3)
    assert stream.observations[0].dtype == np.uint8
    assert make().single_action_space.n == 17  # type: ignore[attr-defined]


def test_a_time_limit_is_no_death() -> None:
    stream = play(make(max_steps=5), 11)
    assert [t for t in range(11) if stream.truncated[t][0]] == [4, 9]
    assert not any(t[0] for t in stream.terminated)
    assert not np.array_equal(stream.observations[5], stream.observations[0]), "another world"


def test_death_is_no_time_limit() -> None:
    envs = make()
    envs.reset(seed=0)
    player = envs.envs[0].unwrapped._env._player  # type: ignore[attr-defined]
    player.health = 0
    _, reward, terminated, truncated, _ = envs.step(np.array([0]))
    assert terminated[0] and not truncated[0]
    assert reward[0] == pytest.approx(-0.9), "nine points of health, a tenth each"


def test_achievements_are_told() -> None:
    envs = make(max_steps=3)
    *_, info = play(envs, 1).infos
    assert info["achievement_wake_up"].shape == (1,)
    assert sum(key.startswith("achievement_") for key in info) == 22


def test_stack() -> None:
    stream = play(make(stack=3), 2)
    assert stream.observations[0].shape == (1, 64, 64, 9)
    assert np.array_equal(stream.observations[2][..., 3:6], stream.observations[1][..., 6:])
    assert (stream.observations[0][..., :6] == 0).all()


def test_bad_input() -> None:
    with pytest.raises(DiscorlError, match="write just crafter"):
        streams.make("crafter:hard")
    with pytest.raises(DiscorlError, match="area must be at least 9"):
        make(area=3)
