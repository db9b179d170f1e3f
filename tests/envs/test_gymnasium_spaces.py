"""Observation and action spaces of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from discorl.envs.env_config import EnvConfig
from discorl.envs.gymnasium import GymnasiumEnv, make_vector
from discorl.envs.gymnasium.actions import MAX_ACTIONS, action_map
from discorl.envs.gymnasium.spaces import observation_leaves
from discorl.errors import DiscorlError, EnvFailure
from discorl.types import ObservationSpec
from tests.builders import rng
from tests.envs.gym_examples import Sampler


def convert(space: spaces.Space, *observations: Any, layout: str = "auto") -> np.ndarray:
    """A batch of single observations, as the network gets them."""
    (leaf,) = observation_leaves(space, "it", layout)
    out = leaf.convert(np.stack([np.asarray(x) for x in observations]))
    assert out.shape[1:] == leaf.spec.shape
    return out


def test_vectors_are_float32_whatever_they_were() -> None:
    for dtype in (np.float64, np.float16, np.int64, np.int8):
        out = convert(spaces.Box(-5, 5, (2,), dtype), np.array([1, -2], dtype))
        assert out.dtype == np.float32
        assert out.tolist() == [[1, -2]]
    numbers = convert(spaces.Box(0, 255, (2,), np.uint8), np.array([7, 255], np.uint8))
    assert numbers.dtype == np.uint8, "bytes stay bytes until the network"


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_boards_of_small_numbers_stay_small(dtype: type) -> None:
    space = spaces.Box(-100, 100, (4, 5), dtype)
    board = np.arange(-10, 10).reshape(4, 5).astype(dtype)
    (leaf,) = observation_leaves(space, "it", "auto")
    assert leaf.spec == ObservationSpec((4, 5), getattr(torch, np.dtype(dtype).name))
    out = convert(space, board)
    assert out.dtype == dtype and np.array_equal(out[0], board)


def test_a_number_alone() -> None:
    assert convert(spaces.Box(-1, 1, (), np.float32), np.float32(0.5)).tolist() == [0.5]


@pytest.mark.parametrize(
    "shape, layout, expected",
    [
        ((5, 6, 3), "auto", (3, 5, 6)),
        ((3, 5, 6), "auto", (3, 5, 6)),
        ((4, 4, 4), "auto", (4, 4, 4)),
        ((5, 6, 3), "channels-first", (5, 6, 3)),
        ((3, 5, 6), "channels-last", (6, 3, 5)),
        ((5, 6), "auto", (1, 5, 6)),
        ((2, 5, 6, 3), "auto", (6, 5, 6)),
        ((2, 3, 5, 6), "auto", (6, 5, 6)),
    ],
)
def test_images_have_their_channels_first(
    shape: tuple[int, ...], layout: str, expected: tuple[int, ...]
) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    (leaf,) = observation_leaves(space, "it", layout)
    assert leaf.spec == ObservationSpec(expected, torch.uint8, is_image=True)
    assert convert(space, space.sample(), layout=layout).shape == (1, *expected)


def test_pixels_stay_where_they_belong() -> None:
    image = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    out = convert(spaces.Box(0, 255, (4, 5, 3), np.uint8), image)
    assert np.array_equal(out[0, 2], image[:, :, 2])
    stack = np.stack([image, image + 100])
    out = convert(spaces.Box(0, 255, (2, 4, 5, 3), np.uint8), stack)
    assert np.array_equal(out[0, 4], image[:, :, 1] + 100)
    grid = convert(spaces.Box(0, 1, (4, 5, 3), np.float64), image / 100.0)
    assert grid.dtype == np.float32
    assert np.allclose(grid[0, 1], image[:, :, 1] / 100)


def test_discrete_observations_are_one_hot() -> None:
    assert convert(spaces.Discrete(3, start=5), 5, 7).tolist() == [[1, 0, 0], [0, 0, 1]]
    many = spaces.MultiDiscrete([2, 3], start=[1, 0])
    assert convert(many, [2, 0], [1, 2]).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]
    assert convert(spaces.MultiBinary(3), np.array([0, 1, 1], np.int8)).tolist() == [[0, 1, 1]]
    assert convert(spaces.MultiBinary([1, 2]), np.ones((1, 2), np.int8)).shape == (1, 1, 2)
    with pytest.raises(EnvFailure, match=r"environment 1 of it returned 2, which is outside"):
        convert(spaces.Discrete(2), 1, 2)


NESTED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (8, 9, 3), np.uint8),
        "body": spaces.Dict({"speed": spaces.Box(-1, 1, (2,), np.float64)}),
        "both": spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2))),
    }
)


@pytest.mark.parametrize("workers", ["sync", "async"])
def test_nested_spaces_become_tensors_by_name(workers: Any) -> None:
    envs = make_vector([lambda: Sampler(NESTED)] * 2, workers)
    env = GymnasiumEnv(envs, owned=True)
    assert env.spec.observation_shape == ()
    assert env.spec.observations == {
        "camera": ObservationSpec((3, 8, 9), torch.uint8, is_image=True),
        "body/speed": ObservationSpec((2,)),
        "both/0": ObservationSpec((3,)),
        "both/1": ObservationSpec((2,)),
    }
    state, timestep = env.reset(rng())
    specs = env.spec.observations or {}
    for _ in range(5):
        for name, spec in specs.items():
            x = timestep.observation[name]
            assert (x.shape, x.dtype) == ((2, *spec.shape), spec.dtype)
        assert torch.equal(timestep.observation["both/0"].sum(1), torch.ones(2))
        state, timestep = env.step(state, torch.tensor([0, 1]), rng())
    env.close()


def test_the_last_observation_of_a_cut_off_episode_is_nested_too() -> None:
    env = GymnasiumEnv(SyncVectorEnv([lambda: Sampler(NESTED)] * 2, autoreset_mode="SameStep"))
    state, timestep = env.reset(rng())
    for _ in range(4):
        assert timestep.truncated is None
        state, timestep = env.step(state, torch.zeros(2, dtype=torch.long), rng())
    assert timestep.truncated is not None
    assert timestep.truncated.tolist() == [True, True]
    assert timestep.final_observation is not None
    for name, x in timestep.final_observation.items():
        assert x.shape == timestep.observation[name].shape
        assert x.dtype == timestep.observation[name].dtype
    camera = timestep.final_observation["camera"]
    assert not torch.equal(camera, timestep.observation["camera"])


def test_the_specification_of_a_single_image() -> None:
    space = spaces.Box(0, 255, (8, 9, 3), np.uint8)
    env = GymnasiumEnv(make_vector([lambda: Sampler(space)]), owned=True)
    assert env.spec.observation_shape == (3, 8, 9)
    assert env.spec.is_image
    assert env.spec.observation_dtype == torch.uint8
    assert env.spec.observations is None
    assert env.reset(rng())[1].observation.dtype == torch.uint8


@pytest.mark.parametrize(
    "space, words",
    [
        (spaces.Text(3), "has Text observations; only Box, Discrete"),
        (spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))}), "Sequence observations at 'a'"),
        (spaces.Discrete(10_001), "10001 values.*vectors is 10000"),
        (spaces.Dict({}), "has no observations"),
    ],
)
def test_observations_that_do_not_fit_are_explained(space: spaces.Space, words: str) -> None:
    with pytest.raises(DiscorlError, match=words) as caught:
        make_vector([lambda: Sampler(space)])
    assert "\n" not in str(caught.value)


# --- actions --------------------------------------------------------------------------------------


def test_numbers_of_actions() -> None:
    actions = action_map(spaces.Discrete(3, start=-1), "it", 5)
    assert actions.num_actions == 3
    assert actions.translate(np.array([0, 2])).tolist() == [-1, 1]
    actions = action_map(spaces.MultiDiscrete([2, 3], start=[0, 7]), "it", 5)
    assert actions.num_actions == 6
    assert actions.translate(np.array([0, 1, 5])).tolist() == [[0, 7], [0, 8], [1, 9]]
    actions = action_map(spaces.MultiBinary(2), "it", 5)
    assert actions.translate(np.arange(4)).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    box = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 4], np.float32))
    actions = action_map(box, "it", 3)
    assert actions.num_actions == 9
    assert actions.translate(np.array([0, 4, 8])).tolist() == [[-1, 0], [0, 2], [1, 4]]
    assert actions.translate(np.array([0])).dtype == np.float32
    whole = action_map(spaces.Box(0, 2, (1,), np.int64), "it", 5)
    assert whole.translate(np.arange(whole.num_actions)).ravel().tolist() == [0, 1, 2]


def test_whole_numbers_are_all_actions_while_they_are_few() -> None:
    one = action_map(spaces.Box(0, 17, (), np.int32), "it", 5)
    assert one.translate(np.arange(one.num_actions)).tolist() == list(range(18))
    bytes_ = action_map(spaces.Box(250, 255, (1,), np.uint8), "it", 5)
    assert bytes_.translate(np.arange(bytes_.num_actions)).ravel().tolist() == [*range(250, 256)]
    full = action_map(spaces.Box(0, 31, (2,), np.int64), "it", 5)
    assert full.num_actions == MAX_ACTIONS
    many = action_map(spaces.Box(-16, 16, (2,), np.int64), "it", 3)
    first = [[-16, -16], [-16, 0], [-16, 16], [0, -16]]
    assert many.num_actions == 9
    assert many.translate(np.arange(4)).tolist() == first


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4, start=10),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiDiscrete(np.array([[2, 1], [2, 2]])),
        spaces.MultiBinary(3),
        spaces.Box(-2, 3, (2, 1), np.float64),
        spaces.Box(-3, 3, (1,), np.int8),
    ],
    ids=str,
)
@pytest.mark.parametrize("workers", ["sync", "async"])
def test_every_action_arrives(space: spaces.Space, workers: Any) -> None:
    """The environment itself checks that each is one of its own."""
    observation = spaces.Box(-1, 1, (1,), np.float32)
    envs = make_vector([lambda: Sampler(observation, space)] * 2, workers)
    env = GymnasiumEnv(envs, options=EnvConfig(action_bins=3), owned=True)
    state, _ = env.reset(rng())
    for a in range(env.spec.num_actions):
        other = env.spec.num_actions - 1 - a
        state, _ = env.step(state, torch.tensor([a, other]), rng())
    if workers == "sync":
        taken = [np.asarray(a).tolist() for a in envs.envs[0].unwrapped.taken]  # pyright: ignore[reportAttributeAccessIssue]
        assert len({str(a) for a in taken}) == env.spec.num_actions
    env.close()


@pytest.mark.parametrize(
    "space, words",
    [
        (spaces.Box(-1, 1, (6,)), "15625 combinations.*the limit is 1024.*--action-bins 3 or less"),
        (spaces.Box(-1, 1, (11,)), "wrap it to have fewer dimensions"),
        (spaces.Box(-np.inf, 1, (2,)), "unbounded continuous actions"),
        (spaces.MultiDiscrete([MAX_ACTIONS, 2]), "2048 combinations"),
        (spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2))), "a Tuple action space"),
    ],
    ids=str,
)
def test_actions_that_do_not_fit_are_explained(space: spaces.Space, words: str) -> None:
    envs = make_vector([lambda: Sampler(spaces.Box(-1, 1, (1,), np.float32), space)])
    with pytest.raises(DiscorlError, match=words) as caught:
        GymnasiumEnv(envs)
    assert "\n" not in str(caught.value)
    envs.close()
