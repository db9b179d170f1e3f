from __future__ import annotations

from typing import Any

import pytest
import torch

from discorl.envs.tasks.memory_length import Memory, MemorySettings
from discorl.errors import DiscorlError
from tests.builders import rng


def test_an_episode_by_hand() -> None:
    """Cues 0 and 1, shown once; asked for after two steps, and answered with 0."""
    env = Memory(2, length=2)
    start, _ = env.reset(rng())
    state = start._replace(cue=torch.tensor([0, 1]))
    zeros = torch.tensor([0, 0])
    state, now = env.step(state, zeros, rng())
    assert now.observation.tolist() == [[0, 0, 0]] * 2
    state, now = env.step(state, zeros, rng())
    assert now.observation.tolist() == [[0, 0, 1]] * 2, "the question"
    assert (now.reward.tolist(), now.discount.tolist()) == ([0, 0], [1, 1])
    state, now = env.step(state, zeros, rng())
    assert (now.reward.tolist(), now.discount.tolist()) == ([1, -1], [0, 0])
    assert now.observation[:, :2].argmax(1).tolist() == state.cue.tolist(), "the next cue"
    assert now.observation.sum(1).tolist() == [1, 1]


def test_a_policy_that_remembers_is_always_right() -> None:
    """With lengths, cues and the meaning of actions all drawn; some actions mean nothing."""
    env = Memory(40, length=(1, 5), num_cues=3, num_actions=5, shuffle_actions=True)
    settings = env.sample_settings(40, rng())
    assert settings.length.unique().tolist() == [1, 2, 3, 4, 5]
    assert settings.actions is not None
    state, now = env.reset(rng(), settings)
    memory, answers = torch.zeros(40, dtype=torch.long), settings.actions.argsort(1)
    for step in range(20):
        cue = now.observation[:, :3]
        memory = torch.where(cue.sum(1) == 1, cue.argmax(1), memory)
        state, now = env.step(state, answers.gather(1, memory[:, None])[:, 0], rng(step))
        assert torch.equal(now.reward, 1 - now.discount)


def test_lengths_of_copies() -> None:
    env = Memory(2, length=(1, 3))
    state, _ = env.reset(rng(), MemorySettings(torch.tensor([1, 3]), None))
    ends = []
    for step in range(8):
        state, now = env.step(state, torch.zeros(2, dtype=torch.long), rng(step))
        ends.append((1 - now.discount).int().tolist())
    assert [x for x, _ in ends] == [0, 1] * 4
    assert [y for _, y in ends] == [0, 0, 0, 1] * 2


def test_cues_are_equally_likely() -> None:
    """Whatever the one before it was."""
    env = Memory(3000, length=1, num_cues=3)
    first, _ = env.reset(rng())
    state = first
    for step in (1, 2):
        state, _ = env.step(state, torch.zeros(3000, dtype=torch.long), rng(step))
    pairs = (3 * first.cue + state.cue).bincount(minlength=9)
    assert pairs.min() > 250


def test_cues_beside_bits() -> None:
    state, now = Memory(3000, num_cues=3, num_bits=2).reset(rng())
    assert state.cue.bincount(minlength=3).min() > 900
    assert now.observation.shape == (3000, 6)
    assert ((now.observation[:, 4:].mean(0) - 0.5).abs() < 0.05).all()


def test_bad_parameters() -> None:
    cases: list[dict[str, Any]] = [{"length": 0}, {"num_cues": 1}, {"num_bits": -1}]
    for bad in cases:
        with pytest.raises(DiscorlError, match="must be"):
            Memory(1, **bad)
    with pytest.raises(DiscorlError, match="2 actions cannot answer 3 cues"):
        Memory(1, num_cues=3, num_actions=2)
