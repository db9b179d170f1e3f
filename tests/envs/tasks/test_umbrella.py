from __future__ import annotations

from typing import Any

import pytest
import torch

from discorl.envs.tasks.umbrella import Umbrella, UmbrellaSettings, UmbrellaState
from discorl.errors import DiscorlError
from tests.builders import rng


def test_an_episode_by_hand() -> None:
    """Rain in the first two copies; umbrellas are taken in the first and the third."""
    env = Umbrella(4, length=2, noise=0)
    start, _ = env.reset(rng())
    state = start._replace(need=torch.tensor([True, True, False, False]))
    state, now = env.step(state, torch.tensor([1, 0, 1, 0]), rng())
    assert now.observation.tolist() == [[1, 1, 0.5], [1, 0, 0.5], [0, 1, 0.5], [0, 0, 0.5]]
    assert (now.reward.tolist(), now.discount.tolist()) == ([0] * 4, [1] * 4)
    state, now = env.step(state, torch.tensor([0, 1, 0, 1]), rng())
    assert (now.reward.tolist(), now.discount.tolist()) == ([1, -1, -1, 1], [0] * 4)
    assert now.observation[:, 1:].tolist() == [[0, 1]] * 4, "no umbrella, all the time left"
    assert torch.equal(now.observation[:, 0], state.need.float())


def test_the_weather_and_the_noise_are_fair_coins() -> None:
    env = Umbrella(4000, length=3, noise=0.5)
    state, now = env.reset(rng())
    assert abs(now.observation[:, 0].mean() - 0.5) < 0.03
    zeros = torch.zeros(4000, dtype=torch.long)
    state, now = env.step(state, zeros, rng(1))
    assert now.reward.unique().tolist() == [-0.5, 0.5]
    assert abs(now.reward.mean()) < 0.03
    state, _ = env.step(state, zeros, rng(2))
    need = state.need
    state, now = env.step(state, zeros, rng(3))
    assert torch.equal(now.reward, torch.where(need, -1.0, 1.0))
    assert abs(state.need.float().mean() - 0.5) < 0.03
    assert 0.45 < (state.need == need).float().mean() < 0.55


def test_following_the_forecast_is_best_whatever_actions_mean() -> None:
    env = Umbrella(50, length=(1, 6), noise=0, num_actions=3, shuffle_actions=True)
    settings = env.sample_settings(50, rng())
    assert settings.actions is not None
    take, leave = settings.actions.eq(1).int().argmax(1), settings.actions.eq(2).int().argmax(1)
    state, now = env.reset(rng(), settings)
    for step in range(12):
        actions = torch.where(now.observation[:, 0] == 1, take, leave)
        state, now = env.step(state, actions, rng(step))
        assert torch.equal(now.reward, 1 - now.discount)


def test_each_copy_has_its_own_length() -> None:
    env = Umbrella(3, length=(1, 3), noise=0)
    lengths = torch.tensor([1, 2, 3])
    state, _ = env.reset(rng(), UmbrellaSettings(lengths, torch.zeros(3), None))
    ends = []
    for step in range(6):
        state, now = env.step(state, torch.zeros(3, dtype=torch.long), rng(step))
        assert isinstance(state, UmbrellaState)
        ends.append((1 - now.discount).int().tolist())
    assert ends == [[1, 0, 0], [1, 1, 0], [1, 0, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]]


def test_bits() -> None:
    env = Umbrella(300, num_bits=4)
    _, now = env.reset(rng())
    assert now.observation.shape == (300, 7)
    assert ((now.observation[:, 3:].mean(0) - 0.5).abs() < 0.1).all()


def test_bad_parameters() -> None:
    cases: list[dict[str, Any]] = [
        {"length": 0},
        {"noise": -1},
        {"num_bits": -1},
        {"num_actions": 1},
    ]
    for bad in cases:
        with pytest.raises(DiscorlError, match="must be"):
            Umbrella(1, **bad)
