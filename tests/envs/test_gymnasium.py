from __future__ import annotations

import importlib.util
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from discorl.envs.env_config import EnvConfig
from discorl.envs.gymnasium import GymnasiumEnv, as_env, gymnasium_env, make_vector
from discorl.envs.registry import make_env
from discorl.envs.tasks.catch import Catch
from discorl.errors import DiscorlError, EnvFailure
from tests.builders import rng
from tests.envs.gym_examples import Corridor, Faulty, OneArray, Sampler


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


def trajectory(seed: int, **options: Any) -> torch.Tensor:
    env = gymnasium_env("CartPole-v1", 3, options=EnvConfig(**options))
    state, timestep = env.reset(rng(seed))
    seen = [timestep.observation]
    for t in range(40):
        state, timestep = env.step(state, torch.tensor([t % 2, 1, 0]), rng())
        seen.append(timestep.observation)
    env.close()
    return torch.stack(seen)


def test_a_seed_is_a_trajectory() -> None:
    first = trajectory(1)
    assert first.dtype == torch.float32
    assert torch.equal(first, trajectory(1))
    assert not torch.equal(first, trajectory(2))
    assert not torch.equal(first[0, 0], first[0, 1]), "copies differ from each other"


@pytest.mark.parametrize("autoreset", ["same-step", "next-step"])
def test_workers_of_either_kind_show_the_same(autoreset: str) -> None:
    sync = trajectory(1, autoreset=autoreset)
    assert torch.equal(sync, trajectory(1, workers="async", autoreset=autoreset))


def test_a_time_limit_ends_an_episode_and_shows_where() -> None:
    env = gymnasium_env("MountainCar-v0", 1)
    state, timestep = env.reset(rng())
    seen = []
    for _ in range(201):
        state, timestep = env.step(state, torch.tensor([1]), rng())
        seen.append(timestep)
    assert [x.discount.item() for x in seen] == [1.0] * 199 + [0.0] + [1.0]
    assert [i for i, x in enumerate(seen) if x.truncated is not None] == [199]
    last = seen[199].final_observation
    # The car cannot jump: the last state is next to the one before, and the next start is not.
    assert (last - seen[198].observation).abs().max() < 0.01
    assert not torch.equal(last, seen[199].observation)


class OneBuffer(gymnasium.vector.VectorEnv):
    """Writes every step's rewards, 1, 2, 3 and so on, into the same array."""

    num_envs = 2
    single_observation_space = spaces.Box(0, 1, (1,), np.float32)
    single_action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self._rewards = np.zeros(2, np.float32)

    def reset(self, **kwargs: Any) -> Any:
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions: Any) -> Any:
        self._rewards += 1
        never = np.zeros(2, np.bool_)
        return np.zeros((2, 1), np.float32), self._rewards, never, never, {}


@pytest.mark.parametrize("options", [{}, {"reward_clip": 10.0}])
def test_rewards_are_kept_where_a_vector_environment_reuses_their_array(options: dict) -> None:
    env = GymnasiumEnv(OneBuffer(), options=EnvConfig(**options))
    state, _ = env.reset(rng())
    steps = [env.step(state, torch.zeros(2), rng())[1] for _ in range(3)]
    assert [x.reward.tolist() for x in steps] == [[1, 1], [2, 2], [3, 3]]
    if options:
        assert [x.raw_reward.tolist() for x in steps] == [[1, 1], [2, 2], [3, 3]]  # pyright: ignore


# --- both ways of resetting, and none ------------------------------------------------------------


def play(env: GymnasiumEnv, *actions: int) -> list[tuple]:
    """(place, time, reward, discount, dead) of the first copy, at the start and after actions."""
    state, now = env.reset(rng())
    seen = []
    for action in (*actions, 0):
        place, time, _ = (10 * now.observation[0]).round().int().tolist()
        dead = None if now.is_dead is None else bool(now.is_dead[0])
        seen.append((place, time, round(now.reward[0].item(), 3), now.discount[0].item(), dead))
        state, now = env.step(state, torch.full((env.num_envs,), action), rng())
    return seen


def corridors(mode: AutoresetMode, **kwargs: Any) -> GymnasiumEnv:
    return GymnasiumEnv(make_vector([lambda: Corridor(**kwargs)] * 2, "sync", mode))


def test_resetting_in_the_same_step() -> None:
    assert play(corridors(AutoresetMode.SAME_STEP, length=2), 1, 1, 0) == [
        (0, 0, 0.0, 1.0, None),
        (1, 1, 1.1, 1.0, None),
        (0, 0, 2.1, 0.0, None),
        (0, 1, 0.0, 1.0, None),
    ]


@pytest.mark.parametrize("workers", ["sync", "async"])
@pytest.mark.parametrize("in_dict", [False, True])
def test_the_last_observation_is_kept_where_an_environment_reuses_its_array(
    workers: Any, in_dict: bool
) -> None:
    env = GymnasiumEnv(make_vector([lambda: OneArray(in_dict, limit=2)] * 2, workers), owned=True)
    state, now = env.reset(rng())
    for _ in range(2):
        state, now = env.step(state, torch.ones(2, dtype=torch.long), rng())
    env.close()
    shown: tuple[Any, ...] = (now.final_observation, now.observation)
    final, first = (x["seen"] if in_dict else x for x in shown)
    assert (10 * final[0]).round().tolist() == [2, 2, 1]
    assert (10 * first[0]).round().tolist() == [0, 0, 1]


def test_resetting_in_the_next_step() -> None:
    """One time step more: its action (a 1) changes nothing, and it has no reward."""
    assert play(corridors(AutoresetMode.NEXT_STEP, length=2), 1, 1, 1, 0) == [
        (0, 0, 0.0, 1.0, False),
        (1, 1, 1.1, 1.0, False),
        (2, 2, 2.1, 0.0, True),
        (0, 0, 0.0, 0.0, False),
        (0, 1, 0.0, 1.0, False),
    ]


class PaysOnReset(SyncVectorEnv):
    """Also the step that only resets has a reward, as envpool's may."""

    def step(self, actions: Any) -> Any:
        observation, reward, *rest = super().step(actions)
        return observation, reward + 7.0, *rest


def test_a_reward_for_resetting_is_not_experience() -> None:
    factories = [lambda: Corridor(length=2)] * 2
    env = GymnasiumEnv(PaysOnReset(factories, autoreset_mode=AutoresetMode.NEXT_STEP))
    rows = play(env, 1, 1, 1, 0)
    assert [reward for _, _, reward, _, _ in rows] == [0.0, 8.1, 9.1, 0.0, 7.0]
    scaled = GymnasiumEnv(
        PaysOnReset(factories, autoreset_mode=AutoresetMode.NEXT_STEP),
        options=EnvConfig(reward_scale=2.0),
    )
    state, now = scaled.reset(rng())
    for _ in range(3):
        state, now = scaled.step(state, torch.ones(2, dtype=torch.long), rng())
    assert now.raw_reward is not None
    assert now.reward.tolist() == now.raw_reward.tolist() == [0, 0]


def test_without_autoreset_it_is_the_same_step() -> None:
    same, none = (
        play(corridors(mode, length=2), 1, 1, 0, 1, 1, 1)
        for mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)
    )
    assert same == none


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_every_mode_shows_the_state_that_was_cut_off(mode: AutoresetMode) -> None:
    env = corridors(mode, length=9, limit=3)
    state, now = env.reset(rng())
    for action in (1, 0, 1):
        assert now.truncated is None
        state, now = env.step(state, torch.tensor([action, 1 - action]), rng())
    assert now.truncated is not None
    assert now.truncated.tolist() == [True, True]
    torch.testing.assert_close(
        now.final_observation, torch.tensor([[0.2, 0.3, 0.1], [0.1, 0.3, 0.1]])
    )
    assert now.discount.tolist() == [0, 0]


def test_reaching_the_end_at_the_time_limit_is_an_end() -> None:
    env = corridors(AutoresetMode.SAME_STEP, length=2, limit=2)
    state, _ = env.reset(rng())
    state, _ = env.step(state, torch.tensor([1, 0]), rng())
    _, now = env.step(state, torch.tensor([1, 1]), rng())
    assert now.truncated is not None
    assert now.truncated.tolist() == [False, True]
    assert now.final_observation is not None
    torch.testing.assert_close(now.final_observation[1], torch.tensor([0.1, 0.2, 0.1]))


def test_episodes_that_end_at_different_times() -> None:
    env = corridors(AutoresetMode.NEXT_STEP, length=2)
    state, now = env.reset(rng())
    rows = []
    for actions in ([1, 0], [1, 1], [0, 1], [1, 0]):
        state, now = env.step(state, torch.tensor(actions), rng())
        assert now.is_dead is not None
        rows.append((now.discount.tolist(), now.is_dead.tolist(), now.ended.tolist()))
    assert rows == [
        ([1, 1], [False, False], [False, False]),
        ([0, 1], [True, False], [True, False]),
        ([0, 0], [False, True], [False, True]),
        ([1, 0], [False, False], [False, False]),
    ]


class ForgetsFinals(SyncVectorEnv):
    """Resets in the same step and says nothing of what it cut off."""

    def step(self, actions: Any) -> Any:
        *rest, _ = super().step(actions)
        return *rest, {}


def test_a_final_observation_that_is_not_shown_is_said_once() -> None:
    envs = ForgetsFinals([lambda: Corridor(9, limit=1)], autoreset_mode="SameStep")
    env = GymnasiumEnv(envs, name="it")
    state, _ = env.reset(rng())
    with pytest.warns(UserWarning, match="it does not return the last observation"):
        state, now = env.step(state, torch.tensor([0]), rng())
    assert now.final_observation is None
    env.step(state, torch.tensor([0]), rng())


def test_how_it_resets_must_be_known() -> None:
    envs = SyncVectorEnv([Corridor])
    envs.metadata = {}
    with pytest.raises(DiscorlError, match=r"does not declare how it resets"):
        GymnasiumEnv(envs)
    assert play(GymnasiumEnv(envs, autoreset=AutoresetMode.NEXT_STEP), 1)[0][4] is False


# --- rewards and observations --------------------------------------------------------------------


def test_rewards_are_scaled_and_clipped_but_not_forgotten() -> None:
    envs = make_vector([lambda: Corridor(9)])
    env = GymnasiumEnv(envs, options=EnvConfig(reward_scale=-0.5, reward_clip=1.0))
    state, now = env.reset(rng())
    assert now.raw_reward is not None
    rows = []
    for _ in range(3):
        state, now = env.step(state, torch.tensor([1]), rng())
        assert now.raw_reward is not None
        rows.append((round(now.raw_reward.item(), 3), round(now.reward.item(), 3)))
    assert rows == [(1.1, -0.55), (2.1, -1.0), (3.1, -1.0)]


@pytest.mark.parametrize("board, expected", [("glyphs", ["other"]), ("map", ["blstats", "other"])])
def test_where_the_player_of_nethack_is_stays_as_it_is(board: str, expected: list[str]) -> None:
    space = spaces.Dict(
        {
            board: spaces.Box(0, 5976, (21, 79), np.int16),
            "blstats": spaces.Box(0, 78, (27,), np.int64),
            "other": spaces.Box(0, 78, (27,), np.int64),
        }
    )
    options = EnvConfig(normalize_observations=True)
    env = GymnasiumEnv(make_vector([lambda: Sampler(space)] * 2), options=options)
    _, first = env.reset(rng())
    assert sorted({key.split(".")[0] for key in env.state_dict()}) == expected
    seen: Any = first.observation
    assert bool((seen["blstats"] > 10).any()) == ("blstats" not in expected)
    assert bool((seen["other"] <= 10).all())


def test_normalised_observations() -> None:
    space = spaces.Dict(
        {
            "far": spaces.Box(100, 300, (3,), np.float64),
            "bytes": spaces.Box(0, 255, (3,), np.uint8),
            "kind": spaces.Discrete(2),
        }
    )
    options = EnvConfig(normalize_observations=True)

    def env() -> GymnasiumEnv:
        return GymnasiumEnv(make_vector([lambda: Sampler(space)] * 8), options=options)

    first = env()
    state, now = first.reset(rng())
    raw_mean = first.state_dict()["far.mean"]
    seen = []
    for _ in range(200):
        state, now = first.step(state, torch.zeros(8, dtype=torch.long), rng())
        seen.append(now.observation["far"])
    late = torch.stack(seen[100:]).flatten(0, 1)
    assert late.dtype == torch.float32
    torch.testing.assert_close(late.mean(0), torch.zeros(3), atol=0.15, rtol=0)
    torch.testing.assert_close(late.std(0), torch.ones(3), atol=0.15, rtol=0)
    assert now.observation["bytes"].dtype == torch.uint8
    assert set(now.observation["kind"].unique().tolist()) <= {0.0, 1.0}

    saved = first.state_dict()
    assert set(saved) == {"far.count", "far.mean", "far.variance"}
    # Each of 201 observations of 8 copies once; the last ones of episodes are not counted.
    assert saved["far.count"].item() == 201 * 8
    assert (raw_mean - saved["far.mean"]).abs().max() > 0
    torch.testing.assert_close(saved["far.mean"], torch.full((3,), 200.0).double(), atol=6, rtol=0)
    second = env()
    second.load_state_dict(saved)
    second.normaliser.frozen = True
    second.reset(rng())
    for name, x in second.state_dict().items():
        assert torch.equal(x, saved[name])
    with pytest.raises(DiscorlError, match="do not match these observations"):
        second.load_state_dict({"far.mean": saved["far.mean"]})


def test_by_default_observations_are_as_they_are() -> None:
    assert corridors(AutoresetMode.SAME_STEP).state_dict() == {}


# --- what users bring ----------------------------------------------------------------------------


def without(space: str) -> Corridor:
    env = Corridor()
    setattr(env, space, None)
    return env


def test_factories_vectors_and_our_own() -> None:
    assert as_env(Corridor, 3).num_envs == 3
    assert as_env(SyncVectorEnv([Corridor] * 2), 3).num_envs == 2
    catch = Catch(4)
    assert as_env(catch, 3) is catch
    wrong: list[tuple[Any, str]] = [
        (Corridor(), "several copies.*lambda"),
        (3, "env is a int"),
        (lambda: "x", "environment 0 made a str"),
        (lambda: 1 / 0, "environment 0 could not be made: ZeroDivisionError"),
        (sys.exit, "environment 0 could not be made: SystemExit"),
        (lambda: os._exit(3), "environment 0 could not be made: SystemExit: 3"),
        (partial(without, "observation_space"), "0 has no observation space: set its observation_"),
        (
            partial(without, "action_space"),
            "environment 0 has no action space: set its action_space",
        ),
    ]
    for source, words in wrong:
        with pytest.raises(DiscorlError, match=words):
            as_env(source, 2)


@pytest.mark.parametrize(
    "options", [EnvConfig(workers="async"), EnvConfig(autoreset="next-step")], ids=str
)
def test_ready_copies_refuse_settings_of_how_to_make_them(options: EnvConfig) -> None:
    with pytest.raises(
        DiscorlError, match=r"^--\w+ does nothing for .* already a vector environment: remove it$"
    ):
        as_env(SyncVectorEnv([Corridor]), 1, options=options)


def test_only_what_was_made_here_is_closed_here() -> None:
    theirs = SyncVectorEnv([Corridor])
    env = as_env(theirs, 1)
    assert isinstance(env, GymnasiumEnv)
    env.close()
    assert not theirs.closed


@pytest.mark.parametrize(
    "env_id, words",
    [
        ("CartPol-v1", "has no environment 'CartPol-v1'; did you mean CartPole-v1"),
        ("cartpole-v1", "did you mean CartPole-v1"),
        ("Zzzz-v0", r"gym:MODULE:ID"),
        ("Taxi-v3", "Taxi-v4"),
        ("no_such_module:Env-v0", "there is no module 'no_such_module': run this in its"),
        ("", "cannot make"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
def test_ids_that_do_not_exist_are_explained(env_id: str, words: str) -> None:
    with pytest.raises(DiscorlError, match=words) as caught:
        gymnasium_env(env_id, 1)
    assert "\n" not in str(caught.value)


def test_what_the_module_of_an_id_needs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "registers_it.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DiscorlError, match="the package 'no_such_package', which is not installed"):
        gymnasium_env("registers_it:Env-v0", 1)


@pytest.mark.skipif(bool(importlib.util.find_spec("mujoco")), reason="MuJoCo is installed")
def test_a_missing_package_is_named() -> None:
    with pytest.raises(DiscorlError, match=r"'Ant-v5' needs a package .*pip install") as caught:
        gymnasium_env("Ant-v5", 1)
    assert "\n" not in str(caught.value)


# --- failures in the middle of a run -------------------------------------------------------------


def go_on(env: GymnasiumEnv, state: Any, num_steps: int) -> Any:
    for _ in range(num_steps):
        state, _ = env.step(state, torch.ones(env.num_envs, dtype=torch.long), rng())
    return state


@pytest.mark.parametrize("workers", ["sync", "async"])
@pytest.mark.parametrize(
    "fault, words",
    [
        ("raise", "environment 2 failed to step: ZeroDivisionError: the wheels came off"),
        ("shape", r"environment 2 returned an observation of shape \(2,\), .* promises \(3,\)"),
        ("nan", r"environment 2 sent a reward that is NaN or infinite \(nan\)"),
        ("exit", "environment 2 failed to step: SystemExit: enough"),
    ],
)
def test_faults_name_the_environment(fault: str, words: str, workers: Any) -> None:
    faults = [None, None, fault, None]
    envs = make_vector([lambda f=f: Faulty(f) for f in faults], workers)
    env = GymnasiumEnv(envs, owned=True)
    state = go_on(env, env.reset(rng())[0], 4)
    with pytest.raises(EnvFailure, match=words) as caught:
        go_on(env, state, 1)
    assert "\n" not in str(caught.value)
    env.close()


@pytest.mark.parametrize("ours", [True, False])
def test_a_process_that_dies_is_named(ours: bool) -> None:
    factories = [lambda f=f: Faulty(f) for f in (None, "die")]
    envs = make_vector(factories, "async") if ours else gymnasium.vector.AsyncVectorEnv(factories)
    env = GymnasiumEnv(envs, owned=True, name="it")
    state, _ = env.reset(rng())
    with pytest.raises(EnvFailure, match=r"environment 1 died .*code -9.* while it was in step"):
        go_on(env, state, 5)
    env.close()


def test_a_process_that_is_killed_between_steps_is_named() -> None:
    envs = make_vector([Corridor] * 2, "async")
    env = GymnasiumEnv(envs, owned=True)
    state, _ = env.reset(rng())
    process = envs.processes[0]  # pyright: ignore[reportAttributeAccessIssue]
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with pytest.raises(EnvFailure, match="environment 0 died"):
        go_on(env, state, 1)
    env.close()


def test_a_ready_vector_that_fails_is_named() -> None:
    """Nothing watches each copy there; what a batch can tell is told."""
    for fault, words in (
        ("raise", "it failed to step: ZeroDivisionError: the wheels came off"),
        ("shape", "it failed to step: ValueError"),
        ("exit", "it failed to step: SystemExit: enough"),
        ("os._exit", "it failed to step: SystemExit: 3"),
    ):
        envs = SyncVectorEnv([lambda: Faulty(None), lambda f=fault: Faulty(f)])
        env = GymnasiumEnv(envs, name="it")
        state, _ = env.reset(rng())
        with pytest.raises(EnvFailure, match=words):
            go_on(env, state, 5)


def test_impossible_settings_are_refused() -> None:
    for make, words in (
        (lambda: EnvConfig(action_bins=1), "action_bins"),
        (lambda: EnvConfig(reward_scale=0.0), "reward_scale"),
        (lambda: EnvConfig(reward_clip=-1.0), "reward_clip"),
    ):
        with pytest.raises(DiscorlError, match=words):
            make()
    with pytest.raises(DiscorlError, match="num_envs"):
        gymnasium_env("CartPole-v1", 0)
