from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from discorl.envs.tasks.cartpole import CartPole
from discorl.errors import DiscorlError
from tests.builders import rng


def test_steps_like_gymnasium() -> None:
    """From the same states, by the same actions: motion, reward and end, whole episodes long."""
    theirs: Any = gymnasium.make("CartPole-v1").unwrapped
    theirs.reset(seed=0)
    env, chance, ends = CartPole(1), np.random.default_rng(0), 0
    motion = chance.uniform(-0.05, 0.05, 4)
    state, _ = env.reset(rng())
    for _ in range(600):
        action = int(chance.integers(2))
        theirs.state, theirs.steps_beyond_terminated = motion, None
        expected, reward, terminated, _, _ = theirs.step(action)
        state = state._replace(motion=torch.tensor(motion[None], dtype=torch.float32))
        state, now = env.step(state, torch.tensor([action]), rng())
        assert now.reward.item() == reward
        assert now.discount.item() == 1 - terminated
        if terminated:
            ends += 1
            assert (now.observation.abs() <= 0.05).all()
            motion = chance.uniform(-0.05, 0.05, 4)
        else:
            np.testing.assert_allclose(now.observation[0], expected, rtol=1e-5, atol=1e-6)
            motion = np.array(theirs.state, dtype=np.float64)
    assert ends > 10


def test_limits_are_those_of_gymnasium() -> None:
    theirs: Any = gymnasium.make("CartPole-v1").unwrapped
    x, angle = theirs.x_threshold, theirs.theta_threshold_radians
    starts = [[s * x * f, 0, 0, 0] for s in (1, -1) for f in (0.999, 1.001)]
    starts += [[0, 0, s * angle * f, 0] for s in (1, -1) for f in (0.999, 1.001)]
    env = CartPole(8)
    state, _ = env.reset(rng())
    state = state._replace(motion=torch.tensor(starts, dtype=torch.float32))
    _, now = env.step(state, torch.zeros(8, dtype=torch.long), rng())
    # Velocities act on places one step later, so that one step moves none of these.
    assert now.discount.tolist() == [1, 0] * 4


def balance(motion: Tensor) -> Tensor:
    """Push to where the pole falls."""
    return (motion @ torch.tensor([0.1, 0.3, 1.0, 0.5]) > 0).long()


def test_a_good_policy_gets_all_500() -> None:
    env = CartPole(16)
    state, now = env.reset(rng())
    for step in range(1, 501):
        state, now = env.step(state, balance(now.observation), rng(step))
        assert now.discount.tolist() == [float(step < 500)] * 16, "the horizon is an end"
    assert env.spec.success_return == 475


def test_parameters_and_orders_are_drawn() -> None:
    env = CartPole(
        32,
        gravity=(5.0, 15.0),
        half_length=(0.25, 1.0),
        horizon=(50, 100),
        shuffle_actions=True,
        shuffle_observations=True,
    )
    settings = env.sample_settings(32, rng())
    assert 5 <= settings.gravity.min() < 7 and 13 < settings.gravity.max() <= 15
    assert settings.cart_mass.unique().tolist() == [1]
    assert settings.actions is not None and settings.observations is not None
    assert len(settings.actions.unique(dim=0)) == 2
    state, now = env.reset(rng(), settings)
    over = torch.zeros(32, dtype=torch.bool)
    for step in range(1, 101):
        motion = now.observation.gather(1, settings.observations.argsort(1))
        assert torch.equal(motion, state.motion)
        actions = settings.actions.argsort(1).gather(1, balance(motion)[:, None])[:, 0]
        state, now = env.step(state, actions, rng(step))
        over |= now.discount == 0
        assert torch.equal(over, settings.horizon <= step)


def test_gravity_and_force_act() -> None:
    """Without gravity a still pole only feels the push: its acceleration by hand."""
    env = CartPole(2, gravity=(1e-6, 20.0), force=(1.0, 20.0))
    settings = env.sample_settings(2, rng())._replace(
        gravity=torch.tensor([0.0, 20.0]), force=torch.tensor([1.0, 11.0])
    )
    state, _ = env.reset(rng(), settings)
    state = state._replace(motion=torch.tensor([[0, 0, 0, 0], [0, 0, 0.1, 0]]))
    _, now = env.step(state, torch.tensor([1, 1]), rng())
    # Masses 1 and 0.1, half length 0.5, so that mass times length is 0.05.
    rate = -(1 / 1.1) / (0.5 * (4 / 3 - 0.1 / 1.1))
    torch.testing.assert_close(now.observation[0, 3], torch.tensor(0.02 * rate))
    torch.testing.assert_close(
        now.observation[0, 1], torch.tensor(0.02 * (1 / 1.1 - 0.05 * rate / 1.1))
    )
    sine, cosine = np.sin(0.1), np.cos(0.1)
    rate = (20 * sine - cosine * 10) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
    torch.testing.assert_close(now.observation[1, 3], torch.tensor(0.02 * rate).float())


def test_bad_parameters() -> None:
    cases: list[dict[str, Any]] = [{"gravity": 0.0}, {"force": (2.0, 1.0)}, {"horizon": 0}]
    for bad in cases:
        with pytest.raises(DiscorlError, match="must be"):
            CartPole(1, **bad)
