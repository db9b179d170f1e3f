from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from discorl.envs.gymnasium import GymnasiumEnv
from discorl.envs.registry import make_env
from discorl.errors import DiscorlError
from tests.builders import rng


def test_cartpole_equals_gymnasium_itself() -> None:
    """Always to the right: the pole falls after some ten steps, and the next episode begins."""
    env = make_env("gym:CartPole-v1", 1)
    state, timestep = env.reset(rng())
    assert env.spec.observation_shape == (4,)
    assert env.spec.num_actions == 2
    assert (timestep.reward.item(), timestep.discount.item()) == (0, 1)

    alone = gymnasium.make("CartPole-v1")
    alone.reset(seed=0)
    alone.unwrapped.state = timestep.observation[0].numpy().astype(np.float64)  # pyright: ignore[reportAttributeAccessIssue]
    for _ in range(50):
        expected, reward, ended, _, _ = alone.step(1)
        state, timestep = env.step(state, torch.tensor([1]), rng())
        assert timestep.reward.item() == reward
        assert timestep.discount.item() == 1 - ended
        if ended:
            break
        torch.testing.assert_close(timestep.observation[0], torch.from_numpy(expected))
    assert timestep.discount.item() == 0
    assert timestep.observation.abs().max() <= 0.05, "a first observation is near the middle"
    _, timestep = env.step(state, torch.tensor([1]), rng())
    assert timestep.discount.item() == 1


def test_a_seed_is_a_trajectory() -> None:
    def run(seed: int) -> torch.Tensor:
        env = GymnasiumEnv("CartPole-v1", 3)
        state, timestep = env.reset(rng(seed))
        seen = [timestep.observation]
        for t in range(40):
            state, timestep = env.step(state, torch.tensor([t % 2, 1, 0]), rng())
            seen.append(timestep.observation)
        return torch.stack(seen)

    first = run(1)
    assert first.dtype == torch.float32
    assert torch.equal(first, run(1))
    assert not torch.equal(first, run(2))
    assert not torch.equal(first[0, 0], first[0, 1]), "copies differ from each other"


def test_truncation_ends_an_episode() -> None:
    env = GymnasiumEnv("MountainCar-v0", 1)
    state, timestep = env.reset(rng())
    discounts = []
    for _ in range(201):
        state, timestep = env.step(state, torch.tensor([1]), rng())
        discounts.append(timestep.discount.item())
    assert discounts == [1.0] * 199 + [0.0] + [1.0]


@pytest.mark.parametrize(
    "env_id, words",
    [
        ("Pendulum-v1", "actions of kind Box.*Discrete"),
        ("Blackjack-v1", "observations of kind Tuple.*Box"),
        ("NoSuchEnv-v0", "NoSuchEnv"),
        ("no_such_module:Env-v0", "no_such_module"),
        ("", "cannot make"),
    ],
)
def test_what_does_not_fit_is_explained(env_id: str, words: str) -> None:
    with pytest.raises(DiscorlError, match=words) as caught:
        GymnasiumEnv(env_id, 1)
    assert "\n" not in str(caught.value)
