from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from discorl import tree
from discorl.envs.tasks.mdp import MDP, MDPSettings
from discorl.errors import DiscorlError
from tests.builders import rng


def sums(probabilities: list[list[list[float]]]) -> Tensor:
    return torch.tensor(probabilities).cumsum(-1)[None]


def test_a_ring_by_hand() -> None:
    """Action 0 goes on to the next of three states, action 1 stays."""
    ring = [[[0.0, 1, 0], [1, 0, 0]], [[0, 0, 1], [0, 1, 0]], [[1, 0, 0], [0, 0, 1]]]
    rewards = torch.tensor([[[0.0, 0.5], [1, 2], [3, 4]]])
    env = MDP(1, num_states=3, num_actions=2, horizon=5)
    settings = MDPSettings(sums(ring), rewards, torch.zeros(1), torch.tensor([5]))
    state, now = env.reset(rng(), settings)
    assert now.observation.tolist() == [[1, 0, 0]]
    seen = []
    for step, action in enumerate([0, 1, 0, 0, 1, 0]):
        state, now = env.step(state, torch.tensor([action]), rng(step))
        seen.append((now.observation[0].argmax().item(), now.reward.item(), now.discount.item()))
    assert seen == [(1, 0, 1), (1, 2, 1), (2, 1, 1), (0, 3, 1), (0, 0.5, 0), (1, 0, 1)]


def test_next_states_are_as_likely_as_they_should_be() -> None:
    env = MDP(30_000, num_states=3, num_actions=1, horizon=9)
    chances = [0.2, 0.0, 0.8]
    settings = MDPSettings(
        sums([[chances]] * 3), torch.zeros(1, 3, 1), torch.tensor([0.1]), torch.tensor([9])
    )
    settings = tree.map(lambda x: x.expand(30_000, *x.shape[1:]), settings)
    state, _ = env.reset(rng(), settings)
    _, now = env.step(state, torch.zeros(30_000, dtype=torch.long), rng(1))
    assert abs(now.discount.mean() - 0.9) < 0.01
    going = now.observation[now.discount == 1].mean(0)
    torch.testing.assert_close(going, torch.tensor(chances), atol=0.01, rtol=0)
    assert now.observation[now.discount == 0].unique(dim=0).tolist() == [[1, 0, 0]]


def test_the_best_policy_gets_the_value_that_dynamic_programming_promises() -> None:
    env = MDP(4000, num_states=4, num_actions=3, horizon=6)
    settings = env.sample_settings(1, rng(3))
    before = torch.nn.functional.pad(settings.cumulative[0], (1, 0))[..., :-1]
    transitions = settings.cumulative[0] - before
    value, policy = torch.zeros(4), []
    for _ in range(6):
        value, best = (settings.rewards[0] + transitions @ value).max(1)
        policy.insert(0, best)
    shared = tree.map(lambda x: x.expand(4000, *x.shape[1:]), settings)
    state, now = env.reset(rng(), shared)
    total = torch.zeros(4000)
    for step in range(6):
        state, now = env.step(state, policy[step][state.place], rng(step))
        total += now.reward
    assert now.discount.max() == 0
    assert value[0] > 0.5
    assert abs(total.mean() - value[0]) < 4 * total.std() / 4000**0.5


def test_what_is_drawn() -> None:
    env = MDP(1, num_states=5, num_actions=2, reward_density=0.3, terminate=(0.01, 0.1))
    settings = env.sample_settings(500, rng())
    torch.testing.assert_close(settings.cumulative[..., -1], torch.ones(500, 5, 2))
    assert (settings.cumulative.diff(dim=-1) >= 0).all()
    assert abs((settings.rewards != 0).float().mean() - 0.3) < 0.03
    assert settings.rewards.min() < -0.9 and settings.rewards.max() > 0.9
    assert settings.terminate.min() >= 0.01 and settings.terminate.max() <= 0.1
    assert settings.horizon.min() >= 20 and settings.horizon.max() <= 100
    uniform = MDP(1, num_states=5, determinism=0.0).sample_settings(1, rng()).cumulative
    torch.testing.assert_close(uniform[0, 0, 0], torch.arange(1, 6) / 5)


def test_bad_parameters() -> None:
    cases: list[dict[str, Any]] = [{"num_states": 0}, {"num_actions": 0}, {"horizon": 0}]
    cases += [{"terminate": 2.0}, {"reward_density": -0.1}, {"determinism": -1}]
    for bad in cases:
        with pytest.raises(DiscorlError, match="must be"):
            MDP(1, **bad)
