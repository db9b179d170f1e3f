from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

from discorl.envs.env_config import EnvConfig
from discorl.envs.gymnasium import as_env
from discorl.envs.registry import KNOWN, TASKS, make_env, make_tensor_env
from discorl.envs.tasks.catch import Catch
from discorl.envs.tasks.grid_tasks import GRID_TASKS
from discorl.errors import DiscorlError
from tests.builders import rng


@pytest.mark.parametrize(
    "name, shape, num_actions",
    [
        ("catch:sampled", (8, 8), 3),
        ("grid:random-small", (4, 7, 7), 5),
        ("grid:random-small:9", (4, 7, 7), 9),
        ("chain", (32,), 2),
        ("chain:10", (12,), 2),
        ("chain:10:bits", (32,), 2),
        ("chain:noisy", (32,), 2),
        ("deep-sea:7", (7, 7), 2),
        ("deep-sea", (10, 10), 2),
        ("memory:8", (3,), 2),
        ("umbrella:10", (3,), 2),
        ("bandit:6", (1,), 6),
        ("bandit:6x4", (4,), 6),
        ("cartpole", (4,), 2),
        ("balance", (3,), 3),
        ("balance:4x2", (4,), 2),
        ("mdp", (10,), 3),
        ("mdp:4x2@12", (4,), 2),
    ],
)
def test_names(name: str, shape: tuple[int, ...], num_actions: int) -> None:
    env = make_env(name, 3)
    assert (env.spec.observation_shape, env.spec.num_actions) == (shape, num_actions)
    assert env.num_envs == 3


@pytest.mark.parametrize(
    "name, message",
    [
        ("chains", "no environment is called 'chains': use catch, grid, chain,"),
        ("deep-sea:x", "use deep-sea:SIZE, deep-sea"),
        ("deep-sea:1", "size of a deep sea must be a number from 2 to 100"),
        ("memory:0", "length of a memory task must be"),
        ("memory:99999999999999999999", "memory task must be a number from 1 to 1000000"),
        ("umbrella:99999999999999999999", "umbrella chain must be a number from 1 to 1000000"),
        ("chain:0", "delay of a chain must be"),
        ("chain:5:loud", "use chain, chain:DELAY"),
        ("umbrella:0", "length of an umbrella chain must be"),
        ("bandit", "use bandit:ARMS, bandit:ARMSxCONTEXTS"),
        ("bandit:1", "number of arms of a bandit must be from 2"),
        ("balance:0x2", "number of dimensions of balance must be"),
        ("balance:3x1", "number of actions of balance must be"),
        ("mdp:0x2", "number of states of an MDP must be"),
        ("grid", "use grid:dense, grid:sparse"),
        ("grid:huge", "use grid:dense, grid:sparse"),
        ("grid:dense:6", "4, 5 or 9 moves, not 6"),
        ("catch:1x3", "needs at least 2 rows"),
        ("catch:1000x1000", "at most 4096 cells, such as 64x64, not 1000x1000"),
        ("catch:1000000000x1000000000", "at most 4096 cells"),
        ("catch@", "no environment is called 'catch@'"),
        ("catch@x", "no environment is called 'catch@x'"),
        ("catch@1@2", "no environment is called"),
        ("deep-sea:\u0663", "no environment is called"),
    ],
)
def test_wrong_names_and_sizes(name: str, message: str) -> None:
    with pytest.raises(DiscorlError, match=message):
        make_env(name, 1)


CHANGED: dict[str, Any] = {
    "kwargs": {"size": 3},
    "wrappers": ("gymnasium.wrappers:TimeAwareObservation",),
    "workers": "async",
    "autoreset": "next-step",
    "exact_resume": True,
    "action_bins": 7,
    "normalize_observations": True,
    "image_layout": "channels-last",
    "normalize_rewards": True,
    "reward_scale": 0.1,
    "reward_clip": 1.0,
}


@pytest.mark.parametrize("name", CHANGED)
def test_settings_that_would_do_nothing_are_refused(name: str) -> None:
    options = EnvConfig(**{name: CHANGED[name]})
    flag = f"^--{name.replace('_', '-')} does nothing for '?catch'?.*: remove it$"
    with pytest.raises(DiscorlError, match=flag):
        make_env("catch", 1, options=options)
    with pytest.raises(DiscorlError, match=flag):
        as_env(Catch(1), 1, options=options, name="catch")


def test_settings_that_mean_something_everywhere_are_not_refused() -> None:
    options = EnvConfig(truncation="terminate")
    others = {"truncation", "suite"}
    assert {field.name for field in fields(EnvConfig)} == CHANGED.keys() | others
    assert make_env("catch", 1, options=options).num_envs == 1
    assert as_env(Catch(1), 1, options=options).num_envs == 1


def test_the_list() -> None:
    assert {f"grid:{name}" for name in GRID_TASKS} < set(KNOWN)
    assert all(KNOWN.values())
    for entry in TASKS:
        first = entry.name.split(", ")[0]
        example = re.sub("[A-Z]+", "5", first)
        assert make_tensor_env(example, 2).num_envs == 2


def test_the_standard_catch_needs_no_settings() -> None:
    env = make_tensor_env("catch", 2)
    assert isinstance(env, Catch)
    assert env.reset(rng())[0].settings is None
