from __future__ import annotations

from typing import Any

import pytest
import torch

from discorl.envs.tasks.deep_sea import DeepSea, DeepSeaSettings
from discorl.errors import DiscorlError
from tests.builders import rng


def test_an_episode_by_hand() -> None:
    """A 2x2 sea: right right, right left, left right and left left."""
    env = DeepSea(4, size=2, move_cost=0.1)
    state, now = env.reset(rng())
    assert now.observation.tolist() == [[[1, 0], [0, 0]]] * 4
    state, now = env.step(state, torch.tensor([1, 1, 0, 0]), rng())
    right, left = [[0, 0], [0, 1]], [[0, 0], [1, 0]]
    assert now.observation.tolist() == [right, right, left, left]
    torch.testing.assert_close(now.reward, torch.tensor([-0.05, -0.05, 0, 0]))
    assert now.discount.tolist() == [1] * 4
    state, now = env.step(state, torch.tensor([1, 0, 1, 0]), rng())
    torch.testing.assert_close(now.reward, torch.tensor([0.95, 0, -0.05, 0]))
    assert now.discount.tolist() == [0] * 4
    assert now.observation.tolist() == [[[1, 0], [0, 0]]] * 4


def test_only_one_way_leads_to_the_treasure() -> None:
    """All 2^5 ways down a 5x5 sea, one for each copy."""
    env = DeepSea(32, size=5)
    ways = torch.arange(32)[:, None] >> torch.arange(5) & 1
    state, _ = env.reset(rng())
    total = torch.zeros(32)
    for step in range(5):
        state, now = env.step(state, ways[:, step], rng())
        total += now.reward
        assert now.discount.tolist() == [float(step < 4)] * 32
    expected = -0.01 / 5 * ways.sum(1)
    expected[-1] += 1
    torch.testing.assert_close(total, expected)
    assert env.spec.success_return is not None
    assert (total >= env.spec.success_return).tolist() == [False] * 31 + [True]


def test_the_way_is_known_from_the_settings() -> None:
    """Sizes and the meaning of actions in each cell are drawn; a small sea ends early."""
    env = DeepSea(64, size=(2, 6), move_cost=(0.0, 0.5), shuffle_actions=True)
    settings = env.sample_settings(64, rng())
    assert settings.size.unique().tolist() == [2, 3, 4, 5, 6]
    assert settings.flipped is not None
    assert 0.45 < settings.flipped.float().mean() < 0.55
    state, now = env.reset(rng(), settings)
    total, over = torch.zeros(64), torch.zeros(64, dtype=torch.bool)
    for step in range(6):
        cell = now.observation.flatten(1).argmax(1)
        right = ~settings.flipped[torch.arange(64), cell]
        state, now = env.step(state, right.long(), rng())
        total += now.reward * ~over
        over |= now.discount == 0
        assert torch.equal(over, settings.size <= step + 1)
    torch.testing.assert_close(total, 1 - settings.move_cost)


def test_a_wall_on_the_left() -> None:
    env = DeepSea(1, size=4)
    state, _ = env.reset(rng(), DeepSeaSettings(torch.tensor([4]), torch.tensor([0.0]), None))
    columns = []
    for action in (0, 1, 0):
        state, _ = env.step(state, torch.tensor([action]), rng())
        columns.append(state.column.item())
    assert columns == [0, 1, 0]


def test_bad_parameters() -> None:
    cases: list[dict[str, Any]] = [
        {"size": 1},
        {"size": 101},
        {"move_cost": 0.6},
        {"move_cost": -0.1},
    ]
    for bad in cases:
        with pytest.raises(DiscorlError, match="must be"):
            DeepSea(1, **bad)
