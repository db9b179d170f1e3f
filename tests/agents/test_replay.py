from __future__ import annotations

import pytest
import torch

from discorl import tree
from discorl.agents.replay import Replay
from discorl.errors import DiscorlError
from discorl.types import Rollout
from tests.builders import assert_bit_equal, random_rollout, rng


def numbered(*numbers: int, num_steps: int = 3) -> Rollout:
    """Trajectories that carry their number in every field; time is in the rewards' tenths."""
    columns = torch.tensor(numbers, dtype=torch.float32).expand(num_steps, -1)
    time = torch.arange(num_steps).unsqueeze(1) / 10
    return Rollout(
        observations=columns.unsqueeze(-1).repeat(1, 1, 2),
        actions=columns.long(),
        rewards=columns + time,
        discounts=columns,
        behaviour_logits=columns.unsqueeze(-1).repeat(1, 1, 4),
    )


def kept(replay: Replay) -> set[int]:
    """Numbers of the trajectories that sampling can bring up."""
    return set(replay.sample(500, rng()).actions[0].tolist())


def test_first_in_first_out() -> None:
    replay = Replay(4)
    sizes = []
    for numbers, expected in [
        ((0, 1), {0, 1}),
        ((2, 3), {0, 1, 2, 3}),
        ((4, 5), {2, 3, 4, 5}),
        ((6,), {3, 4, 5, 6}),
        ((7, 8, 9), {6, 7, 8, 9}),
    ]:
        replay.add(numbered(*numbers))
        assert kept(replay) == expected
        sizes.append(len(replay))
    assert sizes == [2, 4, 4, 4, 4]


def test_wraps_around_within_a_rollout() -> None:
    replay = Replay(5)
    for first in (0, 3, 6, 9):
        replay.add(numbered(first, first + 1, first + 2))
    assert kept(replay) == {7, 8, 9, 10, 11}


def test_samples_are_whole_trajectories() -> None:
    replay = Replay(8)
    replay.add(numbered(*range(5)))
    batch = replay.sample(32, rng())
    for column in range(32):
        number = int(batch.actions[0, column])
        assert_bit_equal(
            tree.index(batch, (slice(None), column)), tree.index(numbered(number), (slice(None), 0))
        )


def test_shapes_and_types_are_those_of_a_rollout() -> None:
    rollout = random_rollout(6, 3, 4, (2, 5))
    replay = Replay(10)
    replay.add(rollout)
    batch = replay.sample(7, rng())
    for sampled, stored in zip(tree.leaves(batch), tree.leaves(rollout), strict=True):
        assert sampled.dtype == stored.dtype
        assert sampled.shape == (6, 7, *stored.shape[2:])


def test_sampling_is_uniform_and_with_replacement() -> None:
    replay = Replay(4)
    replay.add(numbered(0, 1, 2, 3))
    counts = torch.bincount(replay.sample(4000, rng()).actions[0], minlength=4)
    assert counts.min() > 850
    assert counts.max() < 1150


def test_sampling_follows_the_generator() -> None:
    replay = Replay(50)
    replay.add(numbered(*range(50)))
    generator = rng(3)
    first, second = replay.sample(20, generator), replay.sample(20, generator)
    assert_bit_equal(first, replay.sample(20, rng(3)))
    assert not torch.equal(first.actions, second.actions)


def test_samples_are_copies() -> None:
    replay = Replay(1)
    replay.add(numbered(1))
    batch = replay.sample(1, rng())
    replay.add(numbered(2))
    assert batch.actions[0].item() == 1


def test_memory_is_that_of_the_transitions_and_allocated_once() -> None:
    """No y, z or q is kept: observation, action as int32, reward, discount and logits."""
    num_steps, num_actions, observation = 29, 3, (8, 8)
    replay = Replay(100)
    rollout = random_rollout(num_steps, 2, num_actions, observation)
    replay.add(rollout)
    assert replay._storage is not None
    places = [x.data_ptr() for x in tree.leaves(replay._storage)]
    per_transition = 4 * (8 * 8 + 1 + 1 + 1 + num_actions)
    needed = 100 * num_steps * per_transition
    assert needed <= replay.num_bytes <= 1.1 * needed
    for _ in range(120):
        replay.add(rollout)
    assert [x.data_ptr() for x in tree.leaves(replay._storage)] == places
    assert replay.num_bytes <= 1.1 * needed


def test_misuse_is_explained() -> None:
    with pytest.raises(DiscorlError, match="at least 1"):
        Replay(0)
    with pytest.raises(DiscorlError, match="empty"):
        Replay(3).sample(1, rng())
    with pytest.raises(DiscorlError, match="does not fit"):
        Replay(3).add(numbered(1, 2, 3, 4))
