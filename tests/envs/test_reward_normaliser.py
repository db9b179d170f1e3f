"""Rewards divided by the deviation of their discounted sums."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import NormalizeReward

from discorl.envs.env_config import EnvConfig
from discorl.envs.gymnasium import GymnasiumEnv, as_env
from discorl.errors import DiscorlError
from discorl.runs.files import load_params
from discorl.training.rule_choice import read_config
from discorl.training.train import resume, train
from discorl.training.trained_agent import load_agent
from tests.builders import rng
from tests.envs.gym_examples import Corridor
from tests.training.test_train_gymnasium import config

LIMITED = partial(Corridor, length=10**6, limit=7)
"""Its episodes are cut off and never terminate."""


def vector(make: Any, num_envs: int = 3, mode: str = "SameStep") -> SyncVectorEnv:
    return SyncVectorEnv([make] * num_envs, autoreset_mode=mode)


def rewards_of(env: GymnasiumEnv, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rewards to learn from and those of the environment. [T, B] each"""
    state, _ = env.reset(rng(0))
    learnt, raw = [], []
    for now in actions:
        state, timestep = env.step(state, torch.tensor(now), rng(0))
        assert timestep.raw_reward is not None
        learnt.append(timestep.reward.numpy())
        raw.append(timestep.raw_reward.numpy())
    return np.stack(learnt), np.stack(raw)


def actions_for(num_steps: int, num_envs: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, (num_steps, num_envs))


def test_the_numbers_are_gymnasiums() -> None:
    actions = actions_for(60)
    theirs = NormalizeReward(vector(LIMITED))
    theirs.reset(seed=0)
    expected = np.stack([theirs.step(a)[1] for a in actions])
    env = GymnasiumEnv(vector(LIMITED), options=EnvConfig(normalize_rewards=True))
    learnt, raw = rewards_of(env, actions)
    np.testing.assert_allclose(learnt, expected.clip(-10, 10), rtol=1e-5)
    assert np.abs(learnt - raw).max() > 0.1
    assert np.abs(expected[:30]).max() > np.abs(learnt).max() or np.abs(expected).max() < 10


def test_a_termination_ends_the_sum_after_its_reward() -> None:
    """Worked out by hand for one copy that goes on at each step: rewards 1.1, 2.1, 1.1, ..."""
    env = GymnasiumEnv(vector(partial(Corridor, 2), 1), options=EnvConfig(normalize_rewards=True))
    learnt, _ = rewards_of(env, np.ones((4, 1), int))
    sums = [1.1, 0.99 * 1.1 + 2.1, 1.1, 0.99 * 1.1 + 2.1]
    for i, reward in enumerate([1.1, 2.1, 1.1, 2.1]):
        seen = np.array(sums[: i + 1])
        # A start of weight 1e-4 with mean 0 and variance 1.
        weight = 1e-4 + len(seen)
        mean = seen.sum() / weight
        second = (1e-4 + (seen**2).sum()) / weight
        expected = np.clip(reward / np.sqrt(second - mean**2 + 1e-8), -10, 10)
        np.testing.assert_allclose(learnt[i, 0], expected, rtol=1e-4)


def test_steps_that_only_reset_do_not_count() -> None:
    options = EnvConfig(normalize_rewards=True)
    one_way = GymnasiumEnv(vector(LIMITED, 1), options=options)
    other = GymnasiumEnv(vector(LIMITED, 1, "NextStep"), options=options)
    actions = actions_for(21, 1)
    with_resets = np.insert(actions, [7, 14], 1, axis=0)  # what is done in these is ignored
    learnt, _ = rewards_of(one_way, actions)
    with_zeros, _ = rewards_of(other, with_resets)
    assert with_zeros[7] == with_zeros[15] == 0
    np.testing.assert_array_equal(np.delete(with_zeros, [7, 15], 0), learnt)


def test_scale_and_clip_come_after_it() -> None:
    plain = EnvConfig(normalize_rewards=True)
    learnt, raw = rewards_of(GymnasiumEnv(vector(LIMITED), options=plain), actions_for(20))
    both = replace(plain, reward_scale=0.5, reward_clip=1.0)
    scaled, same = rewards_of(GymnasiumEnv(vector(LIMITED), options=both), actions_for(20))
    np.testing.assert_allclose(scaled, (0.5 * learnt).clip(-1, 1), rtol=1e-6)
    np.testing.assert_array_equal(raw, same)


def test_agents_that_share_copies_have_their_own_and_can_start_over() -> None:
    options = EnvConfig(normalize_rewards=True)
    shared = GymnasiumEnv(vector(LIMITED, 4), options=options, num_agents=2)
    actions = actions_for(20, 4)
    learnt, _ = rewards_of(shared, actions)
    for agent, copies in enumerate((slice(0, 2), slice(2, 4))):
        alone = GymnasiumEnv(vector(LIMITED, 2), options=options)
        np.testing.assert_array_equal(rewards_of(alone, actions[:, copies])[0], learnt[:, copies])
        saved = shared.state_dict()["(reward).variance"][agent]
        assert saved == alone.state_dict()["(reward).variance"][0]
    shared.forget(np.array([False, True]))
    after = shared.state_dict()
    assert after["(reward).count"].tolist() == [pytest.approx(40, abs=1e-3), pytest.approx(1e-4)]


def test_what_is_remembered_survives(tmp_path: Path) -> None:
    del tmp_path
    options = EnvConfig(normalize_rewards=True, normalize_observations=True)
    first = GymnasiumEnv(vector(LIMITED), options=options)
    rewards_of(first, actions_for(25))
    state = first.state_dict()
    second = GymnasiumEnv(vector(LIMITED), options=options)
    second.load_state_dict(state)
    assert all(torch.equal(second.state_dict()[k], x) for k, x in state.items())
    second.freeze()
    rewards_of(second, actions_for(5))
    kept = [k for k in state if "sums" not in k]
    assert all(torch.equal(second.state_dict()[k], state[k]) for k in kept)
    fewer = GymnasiumEnv(vector(LIMITED, 1), options=options)
    fewer.load_state_dict(state)  # as an evaluation does
    assert fewer.state_dict()["(reward).sums"].tolist() == [0]
    with pytest.raises(DiscorlError, match="reward statistics do not match"):
        second.load_state_dict({k: x for k, x in state.items() if k != "(reward).mean"})
    with pytest.raises(DiscorlError, match=r"make no sense: \(reward\).variance"):
        second.load_state_dict(state | {"(reward).variance": torch.tensor([-1.0])})


def test_nothing_is_learnt_from_what_is_not_finite() -> None:
    class Bad(gymnasium.vector.VectorWrapper):
        def step(self, actions: Any) -> Any:
            observation, reward, *rest = super().step(actions)
            return observation, reward * np.nan, *rest

    envs = Bad(vector(LIMITED))
    envs.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
    env: Any = as_env(envs, 3, options=EnvConfig(normalize_rewards=True))
    learnt, _ = rewards_of(env, actions_for(1))
    assert np.isnan(learnt).all(), "training refuses it"
    assert env.state_dict()["(reward).count"].item() == pytest.approx(1e-4)


def test_training_reports_what_the_environment_gave(tmp_path: Path) -> None:
    """And a resumed run goes on with the statistics."""
    settings = config(tmp_path, task="mine", env=EnvConfig(normalize_rewards=True))
    plain = train(replace(settings, out=tmp_path / "plain", env=EnvConfig()), env=LIMITED)
    folder = train(replace(settings, steps=2), env=LIMITED).folder
    before = load_params(folder / "env.npz")
    done = resume(replace(read_config(folder)[0], steps=3), env=LIMITED)
    after = load_params(folder / "env.npz")
    assert before["(reward).count"].item() == pytest.approx(2 * 2 * 8, abs=1e-3)
    assert after["(reward).count"].item() == pytest.approx(3 * 2 * 8, abs=1e-3)
    agents = [load_params(f / "agent.npz") for f in (plain.folder, folder)]
    assert any(not torch.equal(agents[0][k], agents[1][k]) for k in agents[0])
    for row in (*plain.metrics, *done.metrics):
        assert 0 <= row["return"] <= 7 * 7.1, "a sum of what the corridor pays"
        assert (row["return"] * 10) % 1 == pytest.approx(0, abs=1e-3) or row["episodes"] > 1
    agent = load_agent(folder, env=LIMITED)
    env: Any = agent.make_env(1)
    at = agent.begin(env, 0)
    for _ in range(3):
        _, at = agent.step(env, at, greedy=True)
    assert torch.equal(env.state_dict()["(reward).count"], after["(reward).count"])
