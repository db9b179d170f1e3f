"""How a suite makes copies of its tasks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium.vector import AsyncVectorEnv

from discorl.envs import suites
from discorl.envs.env_config import EnvConfig
from discorl.envs.registry import make_env
from discorl.envs.suites import packages
from discorl.envs.suites.suite_settings import SokobanSettings
from discorl.errors import DiscorlError
from tests.builders import rng
from tests.envs.suites.streams import make, needs, play, same


def test_options_by_name_and_as_settings() -> None:
    """Sokoban needs no package. Both ways make the same environment."""
    suite = suites.find("sokoban")
    assert suite is not None
    by_name = suite.make("sokoban", 1, {"max_steps": 2, "stack": 3, "next_step": True})
    typed = suite.make("sokoban", 1, SokobanSettings(2), stack=3, next_step=True)
    for envs in (by_name, typed):
        stream = play(envs, 4, actions=[[0]] * 4)
        assert stream.observations[0].shape == (1, 12, 10, 10)
        assert [bool(t[0]) for t in stream.truncated] == [False, True, False, False]


def test_other_values_than_those_named_are_the_defaults() -> None:
    assert play(make("sokoban"), 120, actions=[[0]] * 120).truncated[119][0]


@pytest.mark.parametrize(
    "options, words",
    [
        ({"size": 1}, "Sokoban has no option 'size': use max_steps"),
        ({"max_steps": 0}, "max_steps must be at least 1, not 0"),
        ({"stack": 0}, "stack must be at least 1, not 0"),
    ],
)
def test_options_that_a_suite_does_not_take(options: dict[str, int], words: str) -> None:
    with pytest.raises(DiscorlError, match=words):
        make("sokoban", **options)


@needs("dm_env")
def test_a_suite_without_options() -> None:
    with pytest.raises(DiscorlError, match="dm_env has no option 'size': it has no options"):
        make("dm_env:json:make", size=1)


def test_processes() -> None:
    """Sokoban needs no package."""
    suite = suites.find("sokoban")
    assert suite is not None
    envs = suite.make("sokoban", 2, processes=True)
    try:
        assert isinstance(envs, AsyncVectorEnv)
        there = play(envs, 20)
    finally:
        envs.close()
    assert same(there.observations, play(suite.make("sokoban", 2), 20).observations)


@pytest.mark.parametrize("workers", ["sync", "async"])
@pytest.mark.parametrize("frames", [1, 2])
def test_resetting_in_the_next_step(workers: Any, frames: int) -> None:
    """The game is the same but for a dead step after each end."""
    settings = SokobanSettings(max_steps=3)
    options = EnvConfig(suite=settings, autoreset="next-step", workers=workers)
    env = make_env("sokoban", 2, options=options, frame_stack=frames)
    state, now = env.reset(rng())
    dead, discounts, rewarded = [], [], []
    for _ in range(8):
        state, now = env.step(state, torch.zeros(2, dtype=torch.long), rng())
        dead.append(bool(now.is_dead[0]))  # pyright: ignore[reportOptionalSubscript]
        discounts.append(now.discount[0].item())
        rewarded.append(now.reward[0].item() != 0)
    env.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert dead == [False, False, True, False] * 2
    assert discounts == [1, 1, 0, 0] * 2
    assert rewarded == [True, True, True, False] * 2


@pytest.mark.parametrize("suite", suites.SUITES, ids=lambda s: s.prefix)
def test_suites_reset_as_they_are_told_or_say_that_they_cannot(
    suite: suites.Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before they ask for their package."""
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    assert bool(suite.autoreset) == suite.is_threaded
    if suite.autoreset == "same-step":
        with pytest.raises(DiscorlError, match=r"resets in the step that ends.*remove --autoreset"):
            make_env(f"{suite.prefix}:Pong", 1, options=EnvConfig(autoreset="next-step"))


@needs("minatar")
def test_who_cannot_stack_says_so() -> None:
    with pytest.raises(DiscorlError, match="MinAtar does not stack frames"):
        make("minatar:breakout", stack=2)
    assert make_env("minatar:breakout", 1, frame_stack=2).spec.observation_shape == (4, 10, 10)


@pytest.mark.parametrize("frames, channels", [(None, 4), (1, 4), (3, 12)])
def test_the_number_of_frames(frames: int | None, channels: int) -> None:
    """A board of Sokoban has four channels."""
    env = make_env("sokoban", 1, frame_stack=frames)
    assert env.spec.observation_shape == (channels, 10, 10)
