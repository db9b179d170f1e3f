"""What holds for every tensor-native task."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from discorl import tree
from discorl.envs.base import TensorEnv
from discorl.envs.registry import make_tensor_env
from discorl.envs.tasks.grid_tasks import GRID_TASKS
from discorl.errors import DiscorlError
from discorl.types import TimeStep
from tests.builders import assert_bit_equal, rng

DRAWN = ["catch:sampled", "grid:sampled", "grid:sampled-tabular", "chain", "chain:noisy-bits"]
DRAWN += ["deep-sea", "memory", "umbrella", "bandit:4", "bandit:3x2", "cartpole:sampled", "mdp"]
DRAWN += ["balance"]
FIXED = ["catch", "catch:5x4", *(f"grid:{name}" for name in GRID_TASKS if "sampled" not in name)]
FIXED += ["grid:dense:9", "grid:random-small:4", "chain:6", "deep-sea:5", "memory:3", "umbrella:4"]
FIXED += ["cartpole"]
every_task = pytest.mark.parametrize("name", FIXED + DRAWN)
drawn_tasks = pytest.mark.parametrize("name", DRAWN)


def random_actions(env: TensorEnv, generator: torch.Generator) -> Tensor:
    return torch.randint(env.spec.num_actions, (env.num_envs,), generator=generator)


def play(
    env: TensorEnv, num_steps: int, seed: int = 0, settings: Any = None
) -> list[tuple[Any, TimeStep]]:
    generator = rng(seed)
    seen = [env.reset(generator, settings)]
    for _ in range(num_steps):
        seen.append(env.step(seen[-1][0], random_actions(env, generator), generator))
    return seen


@every_task
def test_shapes_and_the_first_step(name: str) -> None:
    env = make_tensor_env(name, 6)
    (_, first), *later = play(env, 40)
    assert first.reward.tolist() == [0] * 6
    assert first.discount.tolist() == [1] * 6
    for state, now in later:
        assert now.observation.shape == (6, *env.spec.observation_shape)
        assert now.reward.shape == now.discount.shape == (6,)
        for x in (now.observation, now.reward, now.discount):
            assert x.dtype == torch.float32 and x.isfinite().all()
        assert set(now.discount.tolist()) <= {0.0, 1.0}
        assert all(len(x) == 6 for x in tree.leaves(state))


@every_task
def test_a_seed_is_a_trajectory(name: str) -> None:
    env = make_tensor_env(name, 5)
    for once, again in zip(play(env, 30), play(env, 30), strict=True):
        assert_bit_equal(once, again)


@every_task
def test_steps_are_pure(name: str) -> None:
    env = make_tensor_env(name, 5)
    seen, generator = play(env, 12), rng(1)
    kept = tree.map(Tensor.clone, seen)
    for state, _ in seen:
        actions = random_actions(env, generator)
        once, again = (env.step(state, actions, rng(2)) for _ in range(2))
        assert_bit_equal(once, again)
    assert_bit_equal(seen, kept)


@every_task
def test_a_step_never_waits_for_the_device(name: str) -> None:
    """Tensors without contents can be stepped, so nothing asks for a value."""
    env = make_tensor_env(name, 3)
    (state, _), actions = env.reset(rng()), torch.zeros(3, dtype=torch.long)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        state, actions = tree.map(fake.from_tensor, (state, actions))
        env.step(state, actions, rng())
        with pytest.raises(DataDependentOutputException):
            actions[0].item()


@every_task
def test_thousands_of_copies(name: str) -> None:
    env = make_tensor_env(name, 4096)
    generator = rng()
    state, now = env.reset(generator, env.sample_settings(4096, generator))
    for _ in range(3):
        state, now = env.step(state, random_actions(env, generator), generator)
    assert len(now.observation) == 4096


def clock(state: Any) -> Tensor | None:
    """Steps since the beginning of the episode; a bandit has none."""
    for name in ("time", "row", "ball_row"):
        if hasattr(state, name):
            return getattr(state, name)
    return None


@every_task
def test_episodes_end_and_begin_again(name: str) -> None:
    """Where the discount is 0, the state is already that of a new episode."""
    env = make_tensor_env(name, 4)
    generator, ended = rng(), torch.zeros(4, dtype=torch.bool)
    state, _ = env.reset(generator)
    if hasattr(state.settings, "horizon"):  # up to 2000 steps away
        state = state._replace(time=state.settings.horizon - 2)
    for _ in range(40):
        before, (state, now) = (
            clock(state),
            env.step(state, random_actions(env, generator), generator),
        )
        after, new = clock(state), now.discount == 0
        ended |= new
        if before is None or after is None:
            assert new.all()
        else:
            assert torch.equal(after, torch.where(new, 0, before + 1))
    assert ended.all()


@every_task
def test_without_settings_all_copies_are_one_task(name: str) -> None:
    """And the same one in every run, whatever the generator: training and evaluation agree."""
    env = make_tensor_env(name, 3)
    (one, _), (other, _) = env.reset(rng(1)), env.reset(rng(2))
    if name in ("catch", "catch:5x4"):  # where nothing is drawn, the quick way has no settings
        assert one.settings is other.settings is None
        return
    assert_bit_equal(one.settings, other.settings)
    for x in tree.leaves(one.settings):
        assert torch.equal(x, x[:1].expand_as(x))


@drawn_tasks
def test_a_seed_in_the_name_is_another_draw(name: str) -> None:
    first, same, other = (
        make_tensor_env(name + at, 2).reset(rng())[0].settings for at in ("", "@0", "@1")
    )
    assert_bit_equal(first, same)
    pairs = zip(tree.leaves(first), tree.leaves(other), strict=True)
    assert any(not torch.equal(x, y) for x, y in pairs)


@drawn_tasks
def test_every_copy_keeps_its_own_settings(name: str) -> None:
    env = make_tensor_env(name, 8)
    settings = env.sample_settings(8, rng())
    assert any(len(x.unique(dim=0)) > 1 for x in tree.leaves(settings))
    state, _ = play(env, 60, settings=settings)[-1]
    assert_bit_equal(state.settings, settings)


@drawn_tasks
def test_one_copy_plays_alike_in_any_company(name: str) -> None:
    """A population is one environment: what the others are does not matter to a copy."""
    env = make_tensor_env(name, 4)
    three, six = (env.sample_settings(4, rng(seed)) for seed in (3, 6))
    mixed = tree.map(lambda a, b: torch.cat([a[:2], b[2:]]), three, six)
    alone, company = (play(env, 40, settings=s) for s in (three, mixed))
    for (_, a), (_, b) in zip(alone, company, strict=True):
        assert_bit_equal(tree.index(a, slice(2)), tree.index(b, slice(2)))


@drawn_tasks
def test_an_agents_copies_can_be_restarted(name: str) -> None:
    """Two agents with three copies each; the second gets a new task by ``where`` over states."""
    env = make_tensor_env(name, 6)
    settings = tree.map(lambda x: x.repeat_interleave(3, 0), env.sample_settings(2, rng()))
    state, _ = play(env, 7, settings=settings)[-1]
    fresh, _ = env.reset(rng(5), env.sample_settings(6, rng(9)))
    restarted = torch.tensor([False] * 3 + [True] * 3)

    def choose(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(restarted.view(-1, *[1] * (old.ndim - 1)), new, old)

    mixed = tree.map(choose, fresh, state)
    assert_bit_equal(tree.index(mixed, slice(3)), tree.index(state, slice(3)))
    after, now = env.step(mixed, torch.zeros(6, dtype=torch.long), rng())
    assert_bit_equal(tree.index(after.settings, 5), tree.index(fresh.settings, 5))
    assert now.observation.shape == (6, *env.spec.observation_shape)


@every_task
def test_the_wrong_number_of_settings_is_refused(name: str) -> None:
    env = make_tensor_env(name, 4)
    with pytest.raises(DiscorlError, match="got 3 settings for 4 copies"):
        env.reset(rng(), env.sample_settings(3, rng()))


@every_task
def test_there_must_be_a_copy(name: str) -> None:
    with pytest.raises(DiscorlError, match="num_envs must be at least 1"):
        make_tensor_env(name, 0)
