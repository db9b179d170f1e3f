"""A vector environment that is not made of single ones: Atari's own."""

from __future__ import annotations

import pytest
import torch

from discorl.envs.gymnasium import GymnasiumEnv
from discorl.envs.registry import make_env
from tests.builders import rng

ale_vector = pytest.importorskip("ale_py.vector_env")


@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
def test_atari_in_both_modes(mode: str) -> None:
    """Cut off after 40 frames of four: the last observation is not the first of the next."""
    envs = ale_vector.AtariVectorEnv(
        "pong", num_envs=2, max_num_frames_per_episode=160, autoreset_mode=mode
    )
    env = GymnasiumEnv(envs, name="pong", owned=True)
    assert (env.spec.observation_shape, env.spec.is_image) == ((4, 84, 84), True)
    assert env.spec.observation_dtype == torch.uint8
    state, now = env.reset(rng())
    first, cut_off = now.observation, []
    for _ in range(90):
        before = now
        state, now = env.step(state, torch.tensor([2, 3]), rng())
        if now.truncated is None:
            continue
        assert now.truncated.any() and now.final_observation is not None
        row = int(now.truncated.nonzero()[0])
        # Three of the four frames of a stack were there before.
        assert torch.equal(now.final_observation[row, :3], before.observation[row, 1:])
        assert (now.discount[row], now.ended[row]) == (0, True)
        if mode == "SameStep":
            assert not torch.equal(now.observation[row], now.final_observation[row])
        cut_off.append(row)
    assert len(cut_off) >= 2
    assert first.dtype == torch.uint8
    env.close()


def test_ids_of_known_packages_are_imported() -> None:
    env = make_env("gym:ALE/Pong-v5", 1)
    assert env.spec.observation_shape == (3, 210, 160)
