from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from discorl.envs.registry import make_env
from discorl.envs.suites.dm_env import DmEnv, from_dm_env
from discorl.errors import DiscorlError
from tests.envs.suites.streams import needs, play, same

pytestmark = needs("dm_env")


def corridor(length: int, limit: int, seed: int | None) -> Any:
    """A dm_env environment: walk right to the end of a corridor; ``limit`` steps at most."""
    import dm_env  # type: ignore[import-not-found]
    from dm_env import specs  # type: ignore[import-not-found]

    class Corridor(dm_env.Environment):
        def __init__(self) -> None:
            self._random = np.random.default_rng(seed)
            self._board = np.zeros(length, np.float32)

        def reset(self) -> Any:
            self._at, self._steps = int(self._random.integers(length - 2)), 0
            return dm_env.restart(self._show())

        def step(self, action: Any) -> Any:
            self._at = max(self._at + (1 if action else -1), 0)
            self._steps += 1
            if self._at == length - 1:
                return dm_env.termination(1.0, self._show())
            if self._steps == limit:
                return dm_env.truncation(0.0, self._show())
            return dm_env.transition(0.0, self._show())

        def _show(self) -> Any:
            self._board[:] = 0
            self._board[self._at] = 1
            return {"board": self._board, "place": self._at}

        def observation_spec(self) -> Any:
            board = specs.BoundedArray((length,), np.float32, 0.0, 1.0)
            return {"board": board, "place": specs.DiscreteArray(length)}

        def action_spec(self) -> Any:
            return specs.DiscreteArray(2)

    return Corridor()


def test_spaces() -> None:
    env = DmEnv(lambda seed: corridor(5, 9, seed))
    assert env.action_space == gymnasium.spaces.Discrete(2)
    board = gymnasium.spaces.Box(0, 1, (5,), np.float32)
    place = gymnasium.spaces.Discrete(5)
    assert env.observation_space == gymnasium.spaces.Dict(board=board, place=place)


def test_termination_and_truncation() -> None:
    envs = from_dm_env(lambda seed: corridor(6, 5, seed), 1)
    right = play(envs, 8, actions=[[1]] * 8)
    t = next(t for t in range(8) if right.terminated[t][0])
    assert right.rewards[t][0] == 1 and not right.truncated[t][0]
    assert right.infos[t + 1]["final_obs"][0]["place"] == 5
    left = play(envs, 8, actions=[[0]] * 8)
    assert [bool(x[0]) for x in left.truncated] == [False] * 4 + [True] + [False] * 3
    assert not any(x[0] for x in left.terminated)


def test_seeds() -> None:
    envs = from_dm_env(lambda seed: corridor(50, 3, seed), 2)
    first = play(envs, 20)
    assert same(play(envs, 20).observations, first.observations)
    assert not same(play(envs, 20, seed=8).observations, first.observations)
    place = first.observations[0]["place"]
    assert place[0] != place[1], "the copies differ"


def test_what_was_shown_stays() -> None:
    env = DmEnv(lambda seed: corridor(5, 9, seed))
    first, _ = env.reset(seed=0)
    kept = first["board"].copy()
    env.step(1)
    assert np.array_equal(first["board"], kept)


def test_text_is_refused() -> None:
    from dm_env import specs  # type: ignore[import-not-found]

    def build(seed: int | None) -> Any:
        env = corridor(5, 9, seed)
        env.observation_spec = lambda: {"instruction": specs.StringArray(())}
        return env

    with pytest.raises(DiscorlError, match="not an array of numbers"):
        DmEnv(build)


MODULE = "tests.envs.suites.test_dm_env"


def make_corridor(seed: int | None) -> Any:
    return corridor(6, 5, seed)


def test_named_by_its_function() -> None:
    env = make_env(f"dm_env:{MODULE}:make_corridor", 2)
    _, first = env.reset(torch.Generator().manual_seed(0))
    assert env.spec.num_actions == 2
    assert {k: tuple(x.shape) for k, x in first.observation.items()} == {
        "board": (2, 6),
        "place": (2, 6),
    }


@pytest.mark.parametrize(
    "name, words",
    [
        ("", "write dm_env:MODULE:FUNCTION"),
        ("json", "write dm_env:MODULE:FUNCTION"),
        ("no_such_module:make", "there is no module 'no_such_module'.*PYTHONPATH"),
        ("json:make", "json has no function 'make'"),
        ("json:__name__", "json has no function '__name__'"),
    ],
)
def test_a_name_that_leads_nowhere(name: str, words: str) -> None:
    with pytest.raises(DiscorlError, match=words) as e:
        make_env(f"dm_env:{name}", 2)
    assert "\n" not in str(e.value)


@needs("bsuite")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["catch/0", "deep_sea/0", "umbrella_length/3", "bandit/0"])
def test_bsuite(name: str) -> None:
    """Environments that others wrote."""
    import bsuite  # type: ignore[import-not-found]

    envs = from_dm_env(lambda seed: bsuite.load_from_id(name), 2)
    stream = play(envs, 60)
    assert all(envs.observation_space.contains(x) for x in stream.observations)
    assert sum(x.sum() for x in stream.terminated) > 1
    if name == "catch/0":
        assert stream.observations[0].shape == (2, 10, 5)
        assert {float(r) for rewards in stream.rewards for r in rewards} == {-1.0, 0.0, 1.0}
