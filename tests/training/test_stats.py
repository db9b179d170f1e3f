from __future__ import annotations

import torch

from discorl.training.stats import EpisodeStats, summarise
from discorl.types import EnvSpec, Rollout
from tests.builders import random_rollout

SPEC = EnvSpec((1,), 2, success_return=1.0)


def rollout(rewards: list[list[float]], discounts: list[list[float]]) -> Rollout:
    other = random_rollout(len(rewards), len(rewards[0]))
    return Rollout(
        other.observations,
        other.actions,
        torch.tensor(rewards),
        torch.tensor(discounts),
        other.behaviour_logits,
    )


def test_episodes_are_counted_across_rollouts() -> None:
    """The reward that comes with discount 0 is the last of its episode."""
    stats = EpisodeStats(SPEC, num_envs=2)
    assert stats.summary() == {}
    first = stats.observe(rollout([[0, 0], [1, 0], [2, 5]], [[1, 1], [1, 1], [0, 1]]))
    assert first == [(3.0, 2.0)]
    second = stats.observe(rollout([[0, 1], [-4, 0]], [[1, 1], [0, 0]]))
    assert second == [(-4.0, 2.0), (6.0, 4.0)]
    assert stats.num_episodes == 3
    assert stats.summary() == {"return": 5 / 3, "length": 8 / 3, "success": 2 / 3}


def test_the_window_forgets() -> None:
    stats = EpisodeStats(SPEC, num_envs=1, window=2)
    for reward in (8.0, 0.0, 4.0):
        stats.observe(rollout([[reward]], [[0]]))
    assert stats.summary()["return"] == 2.0
    assert stats.num_episodes == 3


def test_success_only_where_there_is_such_a_thing() -> None:
    assert "success" not in summarise([(1.0, 3.0)], EnvSpec((1,), 2))
