from __future__ import annotations

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from discorl.envs.suites import procgen
from discorl.errors import DiscorlError
from tests.envs.suites.streams import check, make, needs, play

pytestmark = needs("envpool")


@pytest.mark.parametrize("game", procgen.GAMES)
def test_games(game: str) -> None:
    stream = check(f"procgen:{game}", num_steps=20, threads=1)
    assert stream.observations[0].shape == (2, 3, 64, 64)
    assert stream.observations[0].dtype == np.uint8


def levels(**options: object) -> set[int]:
    envs = make("procgen:coinrun", 64, threads=1, **options)
    seen = {int(n) for seed in (0, 1) for n in envs.reset(seed=seed)[1]["level_seed"]}
    envs.close()
    return seen


def test_500_training_levels() -> None:
    seen = levels()
    assert len(seen) > 50
    assert min(seen) >= 0 and max(seen) < 500


def test_other_levels() -> None:
    assert max(levels(levels=0)) > 500
    assert levels(levels=1, start_level=7) == {7}


def test_it_resets_in_the_next_step() -> None:
    envs = make("procgen:leaper", 4, threads=1)
    assert envs.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    stream = play(envs, 300)
    ended = np.array(stream.terminated) | np.array(stream.truncated)
    t, b = (int(n) for n in np.argwhere(ended[:-1])[0])
    assert stream.infos[t + 1]["elapsed_step"][b] > 0
    assert stream.infos[t + 2]["elapsed_step"][b] == 0
    assert stream.rewards[t + 1][b] == 0 and not ended[t + 1, b]


def test_stack_and_difficulty() -> None:
    envs = make("procgen:maze", stack=4, difficulty="easy", threads=1)
    stream = play(envs, 2)
    assert stream.observations[0].shape == (1, 12, 64, 64)
    assert np.array_equal(stream.observations[2][:, 6:9], stream.observations[1][:, 9:])


def test_bad_input() -> None:
    with pytest.raises(DiscorlError, match="did you mean coinrun"):
        make("procgen:coinrn")
    with pytest.raises(DiscorlError, match="easy or hard"):
        make("procgen:coinrun", difficulty="medium")


def test_the_system_lacks_qt(monkeypatch: pytest.MonkeyPatch) -> None:
    import envpool  # type: ignore[import-not-found]

    def fail(*args: object, **kwargs: object) -> None:
        raise ImportError("requires Qt") from ImportError("libQt5Gui.so.5: cannot open")

    monkeypatch.setattr(envpool, "make", fail)
    with pytest.raises(DiscorlError, match=r"apt-get install libqt5gui5.*libQt5Gui\.so\.5"):
        make("procgen:coinrun")
