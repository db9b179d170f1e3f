from __future__ import annotations

from typing import Any

import pytest

from discorl.envs.base import check_copies, close_env, is_env
from discorl.envs.env_config import EnvConfig
from discorl.envs.gymnasium import GymnasiumEnv, as_env
from discorl.envs.registry import make_env
from discorl.errors import DiscorlError
from tests.builders import rng
from tests.envs.gym_examples import Corridor


class Delegating:
    """A wrapper as users write them: what it does not have, it asks of what it wraps."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


def test_what_environments_can_do() -> None:
    catch, corridors = make_env("catch", 2), as_env(Corridor, 2)
    for env in (catch, corridors, Delegating(catch)):
        assert is_env(env)
    assert not is_env(Corridor())
    assert not is_env(3)


def test_closing() -> None:
    close_env(make_env("catch", 2))  # which has nothing to close
    env = as_env(Corridor, 2, options=EnvConfig(workers="async"))
    assert isinstance(env, GymnasiumEnv)
    env.reset(rng())
    close_env(env)
    with pytest.raises(DiscorlError, match="ClosedEnvironmentError"):
        env.reset(rng())


def test_there_must_be_a_copy() -> None:
    check_copies(1)
    with pytest.raises(DiscorlError, match="num_envs must be at least 1, not 0"):
        check_copies(0)
