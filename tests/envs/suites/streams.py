"""Playing vector environments at random, and what every suite's must do."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

from discorl.envs import suites
from discorl.envs.suites.packages import is_installed


def needs(package: str) -> pytest.MarkDecorator:
    """Skip where ``package`` is not installed."""
    suite = next((s for s in suites.SUITES if s.package == package), None)
    how = suite.hint if suite else f"pip install {package}"
    return pytest.mark.skipif(not is_installed(package), reason=f"needs {package}: {how}")


class Stream(NamedTuple):
    """What a vector environment showed; the first of ``observations`` comes from its reset."""

    observations: list[Any]
    rewards: list[np.ndarray]
    terminated: list[np.ndarray]
    truncated: list[np.ndarray]
    infos: list[dict[str, Any]]


def play(envs: VectorEnv, num_steps: int, seed: int = 0, actions: Any = None) -> Stream:
    """Take ``actions`` [T, B], random ones by default, after a reset with ``seed``."""
    if actions is None:
        envs.action_space.seed(3)
        actions = [envs.action_space.sample() for _ in range(num_steps)]
    observation, info = envs.reset(seed=seed)
    stream = Stream([observation], [], [], [], [info])
    for t in range(num_steps):
        observation, *rest = envs.step(np.asarray(actions[t]))
        for seen, value in zip(stream, (observation, *rest)):
            seen.append(value)  # type: ignore[union-attr]
    return stream


def same(a: Any, b: Any) -> bool:
    """Whether two observations, or lists of them, are equal."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return np.array_equal(a, b)


def make(task: str, num_envs: int = 1, **options: Any) -> VectorEnv:
    """Copies of a suite's task."""
    suite = suites.find(task)
    assert suite is not None
    return suite.make(task, num_envs, options)


def check(task: str, num_steps: int = 30, **options: Any) -> Stream:
    """Shapes, types, and that the seed decides; gives back a stream of 2 environments."""
    envs = make(task, 2, **options)
    try:
        assert isinstance(envs, VectorEnv)
        assert envs.num_envs == 2
        assert envs.metadata["autoreset_mode"] in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP)
        stream = play(envs, num_steps)
        for observation in stream.observations:
            assert envs.observation_space.contains(observation)
        for t in range(num_steps):
            assert stream.rewards[t].shape == (2,)
            assert stream.terminated[t].shape == stream.truncated[t].shape == (2,)
            assert stream.terminated[t].dtype == stream.truncated[t].dtype == bool
        # Once more from the same object, as a second run in a process would.
        again = play(envs, num_steps)
        assert same(again.observations, stream.observations), "the same seed"
        assert same(again.rewards, stream.rewards)
        assert not same(play(envs, num_steps, seed=9).observations, stream.observations)
    finally:
        envs.close()
    return stream
