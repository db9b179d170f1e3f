from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from discorl import tree
from discorl.agents.frames import restack, unstack
from discorl.agents.replay import Replay, num_trajectories
from discorl.errors import DiscorlError
from discorl.types import Rollout
from tests.builders import assert_bit_equal, random_rollout, rng, run_python


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


# --- types and fields of every kind ---------------------------------------------------------------


def test_bytes_stay_bytes_and_dicts_stay_dicts() -> None:
    rollout = random_rollout(4, 3)
    image = torch.randint(256, (4, 3, 2, 5, 5), generator=rng(), dtype=torch.uint8)
    parts: Any = {"image": image, "place": torch.arange(12).reshape(4, 3)}
    rollout = replace(rollout, observations=parts)
    replay = Replay(5)
    replay.add(rollout)
    batch: Any = replay.sample(20, rng()).observations
    assert batch["image"].dtype == torch.uint8
    assert batch["place"].dtype == torch.int64
    for column in range(20):
        source = int(batch["place"][0, column])
        assert torch.equal(batch["image"][:, column], image[:, source])


@pytest.mark.parametrize("frame_stack", [1, 2])
def test_unused_places_are_zero(frame_stack: int) -> None:
    """Also in a replay that comes from a file with something else in them."""
    rollout = replace(numbered(1, 2), observations=torch.ones(3, 2, 4, 5))
    replay = Replay(6, frame_stack)
    torch.use_deterministic_algorithms(True)  # fills what would be left as it was
    try:
        replay.add(rollout)
    finally:
        torch.use_deterministic_algorithms(False)
    dirty = tree.map(torch.clone, replay.state_dict()["storage"])
    for x in tree.leaves(dirty):
        x[:, 2:] = 7
    again = Replay(6, frame_stack)
    again.load_state_dict(replay.state_dict() | {"storage": dirty})
    for kept in (replay, again):
        leaves = tree.leaves(kept.state_dict()["storage"])
        assert len(leaves) > 4
        assert not any(bool(x[:, 2:].any()) for x in leaves)
        assert_bit_equal(kept.sample(4, rng()), replay.sample(4, rng()))


def test_the_age_of_what_was_drawn() -> None:
    replay = Replay(6)
    for numbers in ((0, 0), (1, 1), (2, 2), (3, 3)):  # the last takes the place of the first
        replay.add(numbered(*numbers))
    slots = replay.draw(20, rng(), num_fresh=2)
    assert_bit_equal(replay.take(slots), replay.sample(20, rng(), num_fresh=2))
    assert torch.equal(3 - replay.ages(slots), replay.take(slots).actions[0])


def test_transitions_are_time_steps() -> None:
    assert num_trajectories(200_000, 29) == 6897
    assert num_trajectories(29, 29) == 1
    assert num_trajectories(30, 29) == 2


# --- fresh and replayed ---------------------------------------------------------------------------


def test_a_batch_mixes_fresh_and_replayed() -> None:
    replay = Replay(20)
    for first in range(0, 40, 4):
        replay.add(numbered(*range(first, first + 4)))
        batch = replay.sample(10, rng(first), num_fresh=3).actions[0].tolist()
        assert len(set(batch[:3])) == 3
        assert set(batch[:3]) <= set(range(first, first + 4))
        assert all(max(0, first - 16) <= number < first + 4 for number in batch)
    rest = replay.sample(1000, rng(), num_fresh=4).actions[0, 4:]
    shares = torch.bincount(rest, minlength=40)[20:] / len(rest)
    assert shares.min() > 0.02, "the others are drawn from all"


def test_more_fresh_ones_than_the_last_rollout_has() -> None:
    replay = Replay(8)
    for first in (0, 2, 4):
        replay.add(numbered(first, first + 1))
    assert sorted(replay.sample(4, rng(), num_fresh=4).actions[0].tolist()) == [2, 3, 4, 5]
    assert sorted(replay.sample(6, rng(), num_fresh=9).actions[0].tolist()) == list(range(6))
    assert replay.sample(9, rng(), num_fresh=9).actions.shape == (3, 9)


def test_every_fresh_one_has_its_turn() -> None:
    replay = Replay(8)
    replay.add(numbered(0, 1, 2, 3))
    seen = {int(replay.sample(1, rng(i), num_fresh=1).actions[0, 0]) for i in range(50)}
    assert seen == {0, 1, 2, 3}


# --- stacked frames -------------------------------------------------------------------------------


def stacked_rollout(
    num_stacked: int, starts: list[tuple[int, int]], repeats: bool, channels: int = 1
) -> Rollout:
    """Frames that are all different, in stacks that begin anew at ``starts`` (t, b)."""
    num_steps, batch = 9, 3
    rollout = random_rollout(num_steps, batch)
    frame = torch.randint(1, 256, (num_steps + 5, batch, channels, 4, 4), generator=rng())
    frame = frame.to(torch.uint8)
    stack = torch.zeros(batch, num_stacked, channels, 4, 4, dtype=torch.uint8)
    stacks = []
    for t in range(-5, num_steps):  # the first stack has a history of its own
        stack = torch.cat([stack[:, 1:], frame[t].unsqueeze(1)], 1)
        for b in range(batch):
            if (t, b) in starts:
                stack[b, :-1] = stack[b, -1:] if repeats else 0
        stacks.append(stack.flatten(1, 2))
    return replace(rollout, observations=torch.stack(stacks[5:]))


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("num_stacked, channels", [(2, 1), (4, 1), (4, 3), (12, 2)])
@pytest.mark.parametrize(
    "starts",
    [[], [(0, 0)], [(3, 1), (8, 2)], [(2, 0), (3, 0), (4, 1), (7, 0)], [(-2, 0), (1, 0)]],
    ids=str,
)
def test_stacks_come_back_as_they_were(
    starts: list[tuple[int, int]], num_stacked: int, channels: int, repeats: bool
) -> None:
    rollout = stacked_rollout(num_stacked, starts, repeats, channels)
    frames = unstack(rollout.observations, num_stacked)
    assert frames.frames.shape == (9 + num_stacked - 1, 3, channels, 4, 4)
    assert_bit_equal(restack(frames, num_stacked), rollout.observations)

    replay = Replay(3, frame_stack=num_stacked)
    replay.add(rollout)
    batch = replay.sample(10, rng())
    assert batch.observations.dtype == torch.uint8
    for column in range(10):
        same = (batch.rewards[:, column : column + 1] == rollout.rewards).all(0)
        source = int(same.nonzero()[0])
        assert torch.equal(batch.observations[:, column], rollout.observations[:, source])


def test_stacks_of_several_tensors_are_kept_once_too() -> None:
    """A map, a vector, and a clock that is no stack."""
    images = stacked_rollout(4, [(3, 1), (8, 2)], repeats=False)
    vectors = images.observations[:, :, :, 0].float()  # [T, B, 4, 4]
    parts: Any = {
        "map": images.observations,
        "status": vectors.flatten(2),
        "clock": torch.rand(9, 3, 1, generator=rng()),
    }
    rollout = replace(images, observations=parts)
    replay = Replay(3, frame_stack=4)
    replay.add(rollout)
    frames = 9 + 3
    others = rollout.rewards.numel() * 4 * (3 + 3)  # actions, rewards, discounts; 3 logits
    stacks = 3 * frames * (16 + 4 * 4) + 2 * 9 * 3  # bytes, floats; where stacks begin, twice
    assert replay.num_bytes == stacks + 9 * 3 * 4 + others

    batch = replay.sample(10, rng())
    assert {k: x.dtype for k, x in batch.observations.items()} == {
        "map": torch.uint8,
        "status": torch.float32,
        "clock": torch.float32,
    }
    for column in range(10):
        same = (batch.rewards[:, column : column + 1] == rollout.rewards).all(0)
        source = int(same.nonzero()[0])
        for name, kept in batch.observations.items():
            assert torch.equal(kept[:, column], parts[name][:, source]), name


def test_frames_that_are_black_or_equal_come_back_too() -> None:
    """Where several explanations of a stack fit, any of them gives the stack."""
    rollout = stacked_rollout(4, [(3, 1)], repeats=False)
    for value in (0, 7):
        observations = torch.full_like(rollout.observations, value)
        observations[6:, 1] = rollout.observations[6:, 1]
        observations[6, 1, :3] = value
        observations[7, 1, :2] = value
        observations[7, 1, 2] = observations[6, 1, 3]
        observations[8, 1, :3] = observations[7, 1, 1:]
        assert_bit_equal(restack(unstack(observations, 4), 4), observations)


def test_what_is_no_stack_is_refused() -> None:
    noise = torch.rand(5, 2, 4, 3, 3, generator=rng())
    with pytest.raises(DiscorlError, match="set frame_stack to 1"):
        unstack(noise, 4)
    with pytest.raises(DiscorlError, match="not stacks of 3 frames"):
        unstack(noise, 3)
    parts: Any = {"a": noise, "b": noise[:, :, 0, 0]}
    with pytest.raises(DiscorlError, match="not stacks of the last 2 frames"):
        Replay(4, frame_stack=2).add(replace(random_rollout(5, 2), observations=parts))
    with pytest.raises(DiscorlError, match="none of the observations a, b is a stack of 5 frames"):
        Replay(4, frame_stack=5).add(replace(random_rollout(5, 2), observations=parts))
    with pytest.raises(DiscorlError, match="at least 1"):
        Replay(4, frame_stack=0)


def test_atari_in_little_memory() -> None:
    """200,000 transitions of 84x84x4 with all 18 actions; counted from shapes."""
    rollout = random_rollout(29, 1, 18, (1,))
    frames = torch.zeros(29, 1, 4, 84, 84, dtype=torch.uint8)
    replay = Replay(num_trajectories(200_000, 29), frame_stack=4)
    assert replay.capacity * 29 >= 200_000
    small = Replay(10, frame_stack=4)
    small.add(replace(rollout, observations=frames))
    assert 1.5e9 < small.num_bytes * replay.capacity / 10 < 1.6e9


FILL = """
import ctypes, os, torch
from dataclasses import replace
from discorl.agents.replay import Replay, num_trajectories
from tests.builders import random_rollout

def resident():
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what is free but not given back is not the replay's
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

replay = Replay(num_trajectories(200_000, 29), frame_stack=4)
frames = torch.randint(256, (32, 8, 84, 84), dtype=torch.uint8)
stacks = frames.unfold(0, 4, 1).permute(0, 1, 4, 2, 3).contiguous()
rollout = replace(random_rollout(29, 8, 18, (1,)), observations=stacks)
Replay(8, frame_stack=4).add(rollout)
before = resident()
for _ in range(-(-replay.capacity // 8)):
    replay.add(rollout)
print(replay.num_bytes, resident() - before, len(replay) * 29)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts in Linux's units")
def test_atari_in_little_memory_for_real() -> None:
    """A full replay, in a process of its own: what it counts is what the process grew by."""
    done = run_python("-c", FILL)
    assert done.returncode == 0, done.stderr
    counted, grown, transitions = map(int, done.stdout.split())
    assert transitions >= 200_000
    assert counted < 1.6e9
    assert grown < 1.6e9
    assert grown > 0.98 * counted, "it is really there"


def test_a_replay_that_does_not_fit_the_memory_is_explained() -> None:
    with pytest.raises(DiscorlError, match=r"not enough memory.*GB.*lower replay_capacity"):
        Replay(10**14).add(random_rollout())


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP"])
def test_stacks_of_the_real_atari_come_back(mode: str) -> None:
    """Frames of ale-py's vector environment, ends of episodes included."""
    pytest.importorskip("ale_py", reason="needs ale-py: pip install ale-py")
    from ale_py.vector_env import AtariVectorEnv  # pyright: ignore[reportMissingImports]
    from gymnasium.vector import AutoresetMode

    env = AtariVectorEnv(
        "breakout", 2, autoreset_mode=AutoresetMode[mode], img_height=20, img_width=20
    )
    generator, seen, starts = rng(), [env.reset(seed=0)[0]], 0
    for _ in range(300):
        actions = torch.randint(4, (2,), generator=generator).numpy()
        seen.append(env.step(actions)[0])
        if len(seen) == 29:
            observations = torch.as_tensor(np.stack(seen))
            frames = unstack(observations, 4)
            starts += int((frames.starts != 0).sum())
            assert_bit_equal(restack(frames, 4), observations)
            seen = []
    env.close()
    assert starts > 1
