from __future__ import annotations

from typing import Any

import pytest
import torch

from discorl.envs.tasks.chain import Chain, ChainSettings
from discorl.errors import DiscorlError
from tests.builders import rng


def test_an_episode_by_hand() -> None:
    """Two copies, delays 2 and 3; the first begins with the good action 0, the second does not."""
    env = Chain(2, delay=(2, 3))
    settings = ChainSettings(torch.tensor([2, 3]), torch.zeros(2), torch.tensor([0, 0]))
    state, now = env.reset(rng(), settings)
    assert now.observation.tolist() == [[1, 0, 0, 0, 0]] * 2
    state, now = env.step(state, torch.tensor([0, 1]), rng())
    assert now.observation.tolist() == [[0, 1, 0, 1, 0], [0, 1, 0, 0, 1]]
    assert now.reward.tolist() == [0, 0]
    state, now = env.step(state, torch.tensor([1, 0]), rng())
    assert now.observation.tolist() == [[1, 0, 0, 0, 0], [0, 0, 1, 0, 1]], "only the first counts"
    assert (now.reward.tolist(), now.discount.tolist()) == ([1, 0], [0, 1])
    state, now = env.step(state, torch.tensor([1, 0]), rng())
    assert now.observation.tolist() == [[0, 1, 0, 0, 1], [1, 0, 0, 0, 0]]
    assert (now.reward.tolist(), now.discount.tolist()) == ([0, -1], [1, 0])
    state, now = env.step(state, torch.tensor([0, 0]), rng())
    assert (now.reward.tolist(), now.discount.tolist()) == ([-1, 0], [0, 1])


def test_the_good_action_gets_the_best_return_at_every_delay() -> None:
    env = Chain(60, shuffle_actions=True, num_actions=4)
    settings = env.sample_settings(60, rng())
    assert settings.delay.min() >= 5 and settings.delay.max() <= 30
    assert settings.good.unique().tolist() == [0, 1, 2, 3]
    state, now = env.reset(rng(), settings)
    length, total = torch.full((60,), -1), torch.zeros(60)
    for step in range(1, 31):
        alive = length < 0
        state, now = env.step(state, settings.good, rng(step))
        total += now.reward * alive
        length = torch.where(alive & (now.discount == 0), step, length)
    assert torch.equal(length, settings.delay)
    assert torch.equal(total, torch.ones(60))


def test_noise_comes_before_the_end_only() -> None:
    env = Chain(2000, delay=2, noise=0.5)
    state, now = env.reset(rng())
    state, now = env.step(state, torch.zeros(2000, dtype=torch.long), rng())
    assert 0.49 < now.reward.max() <= 0.5 and -0.5 <= now.reward.min() < -0.49
    assert abs(now.reward.mean()) < 0.03
    _, now = env.step(state, torch.zeros(2000, dtype=torch.long), rng())
    assert now.reward.unique().tolist() == [1]
    assert env.spec.success_return is None
    assert Chain(1).spec.success_return == 1


def test_bits_are_random_in_every_step() -> None:
    env = Chain(400, delay=3, num_bits=5)
    state, first = env.reset(rng(1))
    _, second = env.step(state, torch.zeros(400, dtype=torch.long), rng(2))
    for now in (first, second):
        bits = now.observation[:, 5:]
        assert bits.shape == (400, 5)
        assert bits.unique().tolist() == [0, 1]
        assert ((bits.mean(0) - 0.5).abs() < 0.1).all()
    assert not torch.equal(first.observation[:, 5:], second.observation[:, 5:])


def test_bad_parameters() -> None:
    cases: list[dict[str, Any]] = [
        {"delay": 0},
        {"noise": -1},
        {"num_bits": -1},
        {"num_actions": 1},
    ]
    for bad in cases:
        with pytest.raises(DiscorlError, match="must be"):
            Chain(1, **bad)
