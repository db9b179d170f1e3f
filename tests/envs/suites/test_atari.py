from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

from discorl.envs.suites.atari_scores import GAMES
from discorl.envs.suites.suite_settings import AtariSettings
from discorl.errors import DiscorlError
from tests.envs.suites import streams
from tests.envs.suites.streams import check, needs, play, same

pytestmark = needs("ale_py")


def make(name: str = "Breakout", num_envs: int = 2, **options: Any) -> VectorEnv:
    return streams.make(f"ale:{name}", num_envs, threads=1, **options)


def test_breakout() -> None:
    stream = check("ale:Breakout", threads=1)
    assert stream.observations[0].shape == (2, 4, 84, 84)
    assert stream.observations[0].dtype == np.uint8


def test_it_resets_in_the_same_step_and_shows_the_last_frames() -> None:
    envs = make("Pong", max_minutes=40 / 3600)  # 40 frames: 10 steps
    stream = play(envs, 21)
    cut = [t for t in range(21) if stream.truncated[t].any()]
    assert cut == [9, 19]
    assert stream.truncated[9].all() and not stream.terminated[9].any()
    assert stream.infos[10]["final_obs"].shape == (2, 4, 84, 84)
    # A new episode has one frame only; the three before it are black.
    assert (stream.observations[10][:, :3] == 0).all() and stream.observations[10][:, 3].any()
    assert stream.infos[10]["final_obs"][:, 0].any()


def test_an_episode_lasts_half_an_hour_at_most() -> None:
    assert round(AtariSettings().max_minutes * 3600) == 108_000


def test_actions() -> None:
    assert make().single_action_space.n == 18  # type: ignore[attr-defined]
    assert make(full_actions=False).single_action_space.n == 4  # type: ignore[attr-defined]


def test_sticky_actions_make_equal_actions_differ() -> None:
    """Two copies with different seeds, no other chance in the game, and the same actions."""
    actions = np.tile(np.random.default_rng(0).integers(3, size=(60, 1)), 2)
    for sticky, differ in ((0.0, False), (0.25, True)):
        envs = make("Freeway", sticky=sticky, full_actions=False)
        shown = play(envs, 60, actions=actions).observations
        assert any((x[0] != x[1]).any() for x in shown) == differ


def test_rewards_are_whole_unless_clipped() -> None:
    """A game whose points come by the hundred."""
    whole = np.concatenate(play(make("Assault", sticky=0.0), 120).rewards)
    signs = np.concatenate(play(make("Assault", sticky=0.0, clip_rewards=True), 120).rewards)
    assert whole.max() > 1
    assert np.array_equal(signs, np.sign(whole))


def test_size_and_stack() -> None:
    assert make(image_size=42, stack=2).reset(seed=0)[0].shape == (2, 2, 42, 42)


def test_its_threads_need_no_processes() -> None:
    with_processes, without = make("Pong", processes=True), make("Pong")
    assert type(with_processes) is type(without)
    assert same(play(with_processes, 5).observations, play(without, 5).observations)


def test_all_57_games_have_roms() -> None:
    from ale_py import roms

    keys = {rom.replace("_", "") for rom in roms.get_all_rom_ids()}
    assert len(GAMES) == 57
    assert {name.lower() for name in GAMES} <= keys


@pytest.mark.parametrize("name", ["MontezumaRevenge", "montezuma_revenge", "Qbert", "UpNDown"])
def test_spellings(name: str) -> None:
    make(name, 1).close()


def test_a_rom_beyond_the_57() -> None:
    make("tetris", 1).close()


def test_other_vectors_keep_their_metadata() -> None:
    before = dict(VectorEnv.metadata)
    envs = make()
    assert VectorEnv.metadata == before
    assert envs.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP


@pytest.mark.parametrize(
    "task, options, said",
    [
        ("ale:Brekout", {}, "no Atari game is called 'Brekout': did you mean Breakout"),
        ("ale:", {}, "no Atari game is called ''"),
        ("ale:Pong", {"stiky": 0.1}, "Atari has no option 'stiky'"),
        ("ale:Pong", {"sticky": 1.5}, "sticky must be a probability"),
        ("ale:Pong", {"stack": 0}, "stack must be at least 1"),
        ("ale:Pong", {"max_minutes": 0.0}, "max_minutes must be above 0"),
        ("ale:Pong", {"max_minutes": math.inf}, "above 0 and at most 500000, not inf"),
        ("ale:Pong", {"max_minutes": math.nan}, "above 0 and at most 500000, not nan"),
    ],
)
def test_bad_input(task: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(DiscorlError, match=said):
        streams.make(task, **options)


def test_no_environments() -> None:
    with pytest.raises(DiscorlError, match="num_envs must be at least 1"):
        make(num_envs=0)
