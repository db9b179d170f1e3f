from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from discorl.envs.suites import nethack
from discorl.envs.suites.suite_settings import NetHackSettings
from discorl.errors import DiscorlError
from tests.envs.suites.streams import check, make, needs, play, same

pytestmark = needs("nle")


@pytest.mark.parametrize("task", [t for t in nethack.TASKS if t != "challenge"])
def test_tasks(task: str) -> None:
    stream = check(f"nethack:{task}")
    first = stream.observations[0]
    assert {key: value.shape for key, value in first.items()} == {
        "glyphs": (2, 21, 79),
        "blstats": (2, 27),
        "message": (2, 256),
    }


def test_frames_are_stacked() -> None:
    stream = check("nethack:score", stack=4)
    shown = stream.observations
    assert {key: value.shape for key, value in shown[0].items()} == {
        "glyphs": (2, 4, 21, 79),
        "blstats": (2, 4 * 27),
        "message": (2, 4 * 256),
    }
    assert not shown[0]["glyphs"][:, :3].any()
    for before, after in pairwise(shown[:6]):
        assert np.array_equal(after["glyphs"][:, 2], before["glyphs"][:, 3])
        assert np.array_equal(after["blstats"][:, 54:81], before["blstats"][:, 81:])


def test_time_limit_is_no_death_and_games_differ() -> None:
    envs = make("nethack:score", max_steps=5)
    stream = play(envs, 12)
    assert [t for t in range(12) if stream.truncated[t][0]] == [4, 9]
    assert not any(t[0] for t in stream.terminated)
    starts = [stream.observations[t]["glyphs"] for t in (0, 5, 10)]
    assert not np.array_equal(starts[0], starts[1]) and not np.array_equal(starts[1], starts[2])
    last = stream.infos[5]["final_obs"][0]
    assert not np.array_equal(last["glyphs"], stream.observations[5]["glyphs"][0])


def test_the_limit_of_the_task_itself_is_no_death() -> None:
    """nle's own limit comes as ``terminated``."""
    env = nethack.factory("score", NetHackSettings())()
    env.unwrapped._max_episode_steps = 3  # type: ignore[attr-defined]
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]


def test_what_was_shown_stays() -> None:
    """nle writes into the same arrays again."""
    env = nethack.factory("score", NetHackSettings())()
    first, _ = env.reset(seed=0)
    kept = {key: value.copy() for key, value in first.items()}
    for action in range(env.action_space.n):  # type: ignore[attr-defined]
        env.step(action)
    assert same(first, kept)


def test_the_challenge_plays_without_seeds() -> None:
    envs = make("nethack:challenge")
    assert envs.single_action_space.n == 121  # type: ignore[attr-defined]
    play(envs, 5)


def test_keys_and_character() -> None:
    envs = make("nethack:score", keys="chars,tty_cursor", character="val-dwa-law-fem")
    shown, _ = envs.reset(seed=0)
    assert set(shown) == {"chars", "tty_cursor"}


def test_bad_input() -> None:
    with pytest.raises(DiscorlError, match="did you mean score"):
        make("nethack:scor")
    with pytest.raises(DiscorlError, match="has no key 'glyph'"):
        make("nethack:score", keys="glyph")
