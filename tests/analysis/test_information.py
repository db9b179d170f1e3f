"""What is asked of the future, and agents whose predictions tell it by construction."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from discorl.analysis import information as module
from discorl.analysis.information import (
    NEWBORN,
    SHUFFLED,
    information,
    large_rewards,
    later,
    within,
)
from discorl.analysis.lives import Life
from discorl.analysis.probes import ProbeSize
from discorl.analysis.results import NotApplicable
from tests.analysis.lives import life_of
from tests.builders import random_rollout, small_disco, small_disco_without

NAN = float("nan")
QUICK = ProbeSize((32, 32), 120, 64)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE", QUICK)
    monkeypatch.setattr(module, "SMALL", QUICK)


def columns(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values).T


def test_the_future_ends_with_the_episode() -> None:
    episode = torch.tensor([[0, 0], [0, 0], [1, 0], [1, 0], [1, 0]])
    x = torch.arange(10.0).reshape(5, 2)
    expected = columns([2, NAN, 6, 8, NAN], [3, 5, 7, 9, NAN])
    assert torch.equal(later(x, episode, 1).nan_to_num(-1), expected.nan_to_num(-1))
    assert later(x, episode, 5).isnan().all()
    event = columns([0, 0, 0, 1, 0], [0, 0, 0, 1, 0]).bool()
    expected = columns([0, 0, 1, 1, NAN], [0, 0, 1, 1, NAN])
    assert torch.equal(within(event, episode, 2).nan_to_num(-1), expected.double().nan_to_num(-1))
    expected = columns([0, 0, 1, NAN, NAN], [0, 1, 1, NAN, NAN])
    assert torch.equal(within(event, episode, 3).nan_to_num(-1), expected.double().nan_to_num(-1))


def test_large_rewards() -> None:
    rewards = torch.tensor([-9.0, 0, 1, 2, 3])
    assert large_rewards(rewards).tolist() == [False, False, False, True, True]
    assert not large_rewards(-rewards.abs()).any()


def telling(seed: int) -> Life:
    """Observations hold the next reward, and random networks pass most of what they see on."""
    rollout = random_rollout(num_steps=30, batch=20, seed=seed)
    rollout.observations[:-1, :, 0] = rollout.rewards[1:]
    return life_of(small_disco(), seed=seed, rollout=rollout)


def test_a_reward_that_is_seen_can_be_read_and_one_further_off_cannot() -> None:
    found = information([telling(seed) for seed in range(2)])
    assert found.outputs == ["y", "z", "policy", "value"]
    near, far = (found.of("y", "reward", k) for k in (1, 3))
    assert near is not None and far is not None
    assert near.score.value > near.baseline.value + 0.1
    assert near.score.low is not None and near.score.low <= near.score.value
    # Of three rewards one is seen.
    assert far.baseline.value < far.score.value < near.score.value - 0.1
    null = found.of("y", "reward", 1, SHUFFLED)
    assert null is not None and null.score.value < null.baseline.value + 0.03
    of_entropy, nothing = (found.of("y", "entropy", 1, s) for s in ("trained", SHUFFLED))
    assert of_entropy is not None and of_entropy.score.value < 0.1, "the future is random"
    assert nothing is not None and nothing.score.value < 0.1
    assert found.of("y", "reward", 1, NEWBORN) is not None
    names = [figure.name for figure in found.figures()]
    assert names == ["entropy", "entropy-controls", "reward", "reward-controls"]
    assert len(found.findings()) == 2


def test_rules_without_predictions_have_fewer_outputs() -> None:
    life = life_of(small_disco_without("predictions", "value"), rollout=telling(0).ages[0].played)
    assert information([life]).outputs == ["policy"]


def test_a_task_without_a_future_is_an_error() -> None:
    rollout = random_rollout(num_steps=40, batch=20)
    dull = replace(rollout, rewards=0 * rollout.rewards, observations=0 * rollout.observations)
    with pytest.raises(NotApplicable, match="leaves nothing to predict"):
        information([life_of(small_disco(), rollout=dull)])


def test_one_episode_cannot_be_divided() -> None:
    rollout = random_rollout(num_steps=300, batch=1)
    endless = replace(rollout, discounts=torch.ones_like(rollout.discounts))
    with pytest.raises(NotApplicable, match="need 5 trajectories or episodes"):
        information([life_of(small_disco(), rollout=endless)])
