from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from discorl.envs.suites import minigrid
from discorl.errors import DiscorlError
from tests.envs.suites.streams import check, make, needs, play

pytestmark = needs("minigrid")
LEFT, RIGHT, FORWARD = 0, 1, 2


def test_empty_random() -> None:
    stream = check("minigrid:Empty-Random-5x5")
    assert stream.observations[0].shape == (2, 7, 7, 21)
    assert stream.observations[0].dtype == np.uint8


def test_one_hot_codes_are_the_packages_numbers() -> None:
    envs = make("minigrid:DoorKey-5x5")
    shown, _ = envs.reset(seed=4)
    plain, _ = gymnasium.make("MiniGrid-DoorKey-5x5-v0").reset(seed=4)
    kinds, colours, states = shown[0, ..., :11], shown[0, ..., 11:17], shown[0, ..., 17:]
    for code, i in ((kinds, 0), (colours, 1), (states, 2)):
        assert np.array_equal(code.argmax(-1), plain["image"][..., i])
        assert (code.astype(int).sum(-1) == 255).all()


def test_reaching_the_goal() -> None:
    """From the corner, facing right: two forward, turn, two forward."""
    envs = make("minigrid:Empty-5x5")
    way = [FORWARD, FORWARD, RIGHT, FORWARD, FORWARD, LEFT]
    stream = play(envs, 6, actions=[[a] for a in way])
    assert [bool(t[0]) for t in stream.terminated] == [False] * 4 + [True, False]
    assert stream.rewards[4][0] == pytest.approx(1 - 0.9 * 5 / 100)
    assert np.array_equal(stream.observations[5], stream.observations[0]), "a new episode"
    assert not np.array_equal(stream.infos[5]["final_obs"][0], stream.observations[5][0])


def test_time_runs_out() -> None:
    envs = make("minigrid:Empty-5x5", max_steps=4)
    stream = play(envs, 4, actions=[[LEFT]] * 4)
    assert [bool(t[0]) for t in stream.truncated] == [False] * 3 + [True]
    assert not stream.terminated[3][0]


def test_full_view_shows_the_agent_and_its_direction() -> None:
    envs = make("minigrid:Empty-6x6", full_view=True)
    stream = play(envs, 1, actions=[[RIGHT]])
    before, after = (x[0] for x in stream.observations)
    assert before.shape == (6, 6, 21)
    agent = 10
    assert before[1, 1, agent] == 255 and before[..., agent].sum() == 255
    assert before[1, 1, 17:].argmax() == 0 and after[1, 1, 17:].argmax() == 1


def test_names() -> None:
    names = minigrid.names()
    assert {"Empty-5x5", "DoorKey-8x8", "MemoryS7", "MultiRoom-N4-S5-v1"} <= set(names)
    assert len(names) == len(set(names)) > 60


@pytest.mark.parametrize(
    "name, env_id",
    [
        ("empty-5x5", "MiniGrid-Empty-5x5-v0"),
        ("MiniGrid-Empty-5x5-v0", "MiniGrid-Empty-5x5-v0"),
        ("MultiRoom-N4-S5-v1", "MiniGrid-MultiRoom-N4-S5-v1"),
    ],
)
def test_spellings(name: str, env_id: str) -> None:
    envs = make(f"minigrid:{name}")
    assert envs.envs[0].spec.id == env_id  # type: ignore[attr-defined]


def test_bad_input() -> None:
    with pytest.raises(DiscorlError, match="did you mean Empty-5x5"):
        make("minigrid:Empt-5x5")
