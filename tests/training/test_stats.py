from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from discorl.errors import DiscorlError
from discorl.runs.checkpoint import from_bytes, to_bytes
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


def test_a_checkpoint_between_the_end_and_the_reset_changes_no_length() -> None:
    """With next-step resets, the first step after an end follows no action."""
    ends = torch.tensor([[False], [True]])
    before = replace(rollout([[0.0], [1.0]], [[1.0], [0.0]]), is_dead=ends)
    after = replace(rollout([[0.0], [2.0]], [[0.0], [0.0]]), is_dead=ends)
    whole, resumed = EpisodeStats(SPEC, 1), EpisodeStats(SPEC, 1)
    assert whole.observe(before) == [(1.0, 1.0)]
    saved = from_bytes(to_bytes(whole.state_dict()))
    resumed.load_state_dict(saved)
    assert resumed.observe(after) == whole.observe(after) == [(2.0, 1.0)]
    assert resumed.summary() == whole.summary()

    old = {k: x for k, x in saved.items() if k != "only_resets"}
    EpisodeStats(SPEC, 1).load_state_dict(old)
    with pytest.raises(DiscorlError, match=r"only_resets is torch.bool \[3\]"):
        EpisodeStats(SPEC, 1).load_state_dict(saved | {"only_resets": torch.zeros(3).bool()})
