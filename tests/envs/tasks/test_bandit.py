from __future__ import annotations

from typing import Any

import pytest
import torch

from discorl.envs.tasks.bandit import Bandit, BanditSettings
from discorl.errors import DiscorlError
from tests.builders import rng


def test_an_arm_pays_its_mean_in_its_context() -> None:
    env = Bandit(3, num_arms=2, num_contexts=2, noise=0.0)
    means = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]) + 10 * torch.arange(3)[:, None, None]
    state, _ = env.reset(rng(), BanditSettings(means, torch.zeros(3)))
    state = state._replace(context=torch.tensor([0, 1, 1]))
    state, now = env.step(state, torch.tensor([1, 0, 1]), rng())
    assert now.reward.tolist() == [2, 13, 24]
    assert now.discount.tolist() == [0, 0, 0]
    assert torch.equal(now.observation.argmax(1), state.context)


def test_noise_has_its_deviation() -> None:
    env = Bandit(4000, noise=(0.5, 2.0))
    means, zeros = torch.zeros(4000, 1, 5), torch.zeros(4000, dtype=torch.long)
    noise = torch.tensor([0.5, 2.0]).repeat_interleave(2000)
    state, now = env.reset(rng(), BanditSettings(means, noise))
    assert now.observation.tolist() == [[1]] * 4000
    _, now = env.step(state, zeros, rng())
    assert abs(now.reward[:2000].std() - 0.5) < 0.03
    assert abs(now.reward[2000:].std() - 2.0) < 0.12
    assert abs(now.reward[:2000].mean()) < 0.05


def test_contexts_are_equally_likely() -> None:
    env = Bandit(3000, num_contexts=3)
    state, _ = env.reset(rng())
    state, _ = env.step(state, torch.zeros(3000, dtype=torch.long), rng(1))
    assert state.context.bincount(minlength=3).min() > 900


def test_the_best_arm_is_what_the_settings_say() -> None:
    env = Bandit(20, num_arms=4, means=(-1.0, 1.0), noise=0.0)
    settings = env.sample_settings(20, rng())
    assert settings.means.shape == (20, 1, 4)
    assert settings.means.min() < -0.8 and settings.means.max() > 0.8
    state, _ = env.reset(rng(), settings)
    best, arm = settings.means[:, 0].max(1)
    _, now = env.step(state, arm, rng())
    assert torch.equal(now.reward, best)


def test_bad_parameters() -> None:
    cases: list[dict[str, Any]] = [
        {"num_arms": 1},
        {"num_contexts": 0},
        {"noise": -1},
        {"means": (1.0, 0.0)},
    ]
    for bad in cases:
        with pytest.raises(DiscorlError, match="must be"):
            Bandit(1, **bad)
