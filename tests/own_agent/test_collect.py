"""Acting: the record says what happened, and both kinds of loop are served."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import discorl
from discorl.agents.acting import Acting, act
from discorl.envs.tasks.catch import Catch
from discorl.own_agent import collect_rollout
from tests.builders import assert_bit_equal, rng, small_agent, small_disco
from tests.own_agent.own_agents import Corridor, PlainAgent, RecurrentAgent, TypedAgent, small_rule


class Recorder:
    """A corridor that remembers what it was told and what it answered."""

    def __init__(self) -> None:
        self.env = Corridor(num_envs=3)
        self.actions: list[np.ndarray] = []
        self.answers: list[Any] = []

    def __call__(self, actions: np.ndarray) -> Any:
        self.actions.append(actions.copy())
        obs, rewards, dones = self.env.step_fn(actions)
        self.answers.append((obs.copy(), rewards.copy(), dones.copy()))
        return obs, rewards, dones


def test_the_record_says_what_happened() -> None:
    agent, recorder = PlainAgent(small_rule().heads(3)), Recorder()
    first = recorder.env.obs().copy()
    rollout, obs, state = collect_rollout(agent, recorder, recorder.env.obs(), None, 20)
    assert state is None
    assert rollout.actions.shape == (21, 3)
    assert rollout.observations.dtype == torch.float32
    np.testing.assert_array_equal(rollout.observations[0], first)
    for t, (actions, answer) in enumerate(zip(recorder.actions, recorder.answers, strict=True)):
        np.testing.assert_array_equal(rollout.actions[t], actions)
        np.testing.assert_array_equal(rollout.observations[t + 1], answer[0])
        np.testing.assert_array_equal(rollout.rewards[t + 1], answer[1])
        np.testing.assert_array_equal(rollout.discounts[t + 1], 1 - answer[2])
        with torch.no_grad():
            logits = agent(rollout.observations[t])["logits"]
        torch.testing.assert_close(rollout.behaviour_logits[t], logits)
    assert bool((rollout.discounts == 0).any())
    np.testing.assert_array_equal(obs, recorder.answers[-1][0])
    assert not any(x.requires_grad for x in (rollout.observations, rollout.behaviour_logits))


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_rewards_are_kept_where_the_environment_reuses_their_array(kind: Any) -> None:
    agent, rewards = PlainAgent(small_rule().heads(3)), np.zeros(2, np.float32)

    def step_fn(actions: np.ndarray) -> Any:
        rewards[:] += 1
        return np.zeros((2, 4), np.float32), kind(rewards), np.zeros(2, np.bool_)

    rollout, _, _ = collect_rollout(agent, step_fn, np.zeros((2, 4), np.float32), None, 3)
    assert rollout.rewards[:, 0].tolist() == [0, 1, 2, 3]


def test_the_previous_rollout_says_where_episodes_begin() -> None:
    agent, env = PlainAgent(small_rule().heads(3)), Corridor()
    rollout, obs, _ = collect_rollout(agent, env.step_fn, env.obs(), None, 4)
    while not bool((rollout.discounts[-1] == 0).any()):
        rollout, obs, _ = collect_rollout(agent, env.step_fn, obs, None, 4)
    after, _, _ = collect_rollout(agent, env.step_fn, obs, None, 4, previous=rollout)
    assert_bit_equal(after.discounts[0], rollout.discounts[-1])
    assert_bit_equal(after.rewards[0], rollout.rewards[-1])
    without, _, _ = collect_rollout(agent, env.step_fn, obs, None, 4)
    assert bool((without.discounts[0] == 1).all())


def test_actions_follow_the_policy() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logits = nn.Parameter(torch.tensor([0.2, 0.5, 0.3]).log())

        def forward(self, obs: Tensor) -> dict[str, Tensor]:
            return {"logits": self.logits.expand(len(obs), -1)}

    env = Corridor(num_envs=500)
    rollout, _, _ = collect_rollout(Fixed(), env.step_fn, env.obs(), None, 20, generator=rng())
    share = torch.bincount(rollout.actions[:-1].flatten(), minlength=3) / 10_000
    torch.testing.assert_close(share, torch.tensor([0.2, 0.5, 0.3]), atol=0.02, rtol=0)


def test_a_generator_decides_everything() -> None:
    agent = PlainAgent(small_rule().heads(3), middle=nn.Dropout(0.5))
    rollouts = []
    for seed in (1, 1, 2):
        env, generator = Corridor(), rng(seed)
        torch.manual_seed(len(rollouts))
        before = torch.get_rng_state()
        rollouts.append(
            collect_rollout(agent, env.step_fn, env.obs(), None, 8, generator=generator)[0]
        )
        assert torch.equal(torch.get_rng_state(), before)
    assert_bit_equal(rollouts[0], rollouts[1])
    assert not torch.equal(rollouts[0].behaviour_logits, rollouts[2].behaviour_logits)


def test_typed_outputs_are_as_good() -> None:
    torch.manual_seed(0)
    plain = PlainAgent(small_rule().heads(3))
    typed = TypedAgent(small_rule().heads(3))
    typed.load_state_dict(plain.state_dict())
    rollouts = []
    for agent in (plain, typed):
        env = Corridor()
        rollouts.append(collect_rollout(agent, env.step_fn, env.obs(), generator=rng())[0])
    assert rollouts[0].actions.shape == (30, 2)  # 29 steps, unless told otherwise
    assert_bit_equal(rollouts[0], rollouts[1])


def test_memory_is_carried_and_reset() -> None:
    agent, env = RecurrentAgent(small_rule().heads(3), num_inputs=2), Corridor(length=2)
    start, obs, state = collect_rollout(agent, env.step_fn, env.obs(), None, 5)
    assert_bit_equal(start.agent_state, agent.initial_state(2))  # pyright: ignore
    rollout, _, after = collect_rollout(agent, env.step_fn, obs, state, 12)
    assert_bit_equal(rollout.agent_state, state)  # pyright: ignore

    memory, fresh = state, agent.initial_state(2)
    with torch.no_grad():
        for t in range(12):
            out, memory = agent(rollout.observations[t], memory)
            torch.testing.assert_close(rollout.behaviour_logits[t], out["logits"])
            ended = (rollout.discounts[t + 1] == 0).unsqueeze(1)
            memory = tuple(torch.where(ended, f, m) for f, m in zip(fresh, memory, strict=True))
    assert bool((rollout.discounts == 0).any())
    torch.testing.assert_close(after, memory)


def test_observations_of_many_kinds() -> None:
    seen: list[Any] = []

    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(3))

        def forward(self, obs: Any) -> dict[str, Tensor]:
            seen.append(obs)
            return {"logits": self.bias.expand(2, -1)}

    obs = {"image": np.zeros((2, 3, 3), np.uint8), "more": (np.ones((2, 1)), torch.zeros(2, 5))}

    def step_fn(actions: np.ndarray) -> Any:
        return obs, torch.tensor([1, 2]), [True, False]

    rollout, last, _ = collect_rollout(Looking(), step_fn, obs, None, 3)
    assert last is obs
    observations: Any = rollout.observations
    assert observations["image"].shape == (4, 2, 3, 3)
    assert observations["image"].dtype == seen[0]["image"].dtype == torch.uint8
    assert observations["more"][0].dtype == torch.float32
    assert observations["more"][1].shape == (4, 2, 5)
    assert rollout.rewards[1:].tolist() == [[1, 2]] * 3
    assert rollout.discounts[1:].tolist() == [[0, 1]] * 3


def test_environments_of_the_package_are_served_as_before() -> None:
    env = Catch(num_envs=2, rows=4, columns=3)
    agent = small_agent(small_disco(), observation_shape=(4, 3))
    state = agent.init_state(rng())
    generator = rng(1)
    start = Acting(*env.reset(generator), generator)
    expected, end = act(agent.net, state.params, env, start, 6)
    generator = rng(1)
    env_state, timestep = env.reset(generator)
    result = discorl.collect_rollout(
        agent.net, state.params, env, env_state, timestep, 6, generator=generator
    )
    assert_bit_equal(result, (expected, end.env_state, end.timestep))
    generator = rng(1)
    env_state, timestep = env.reset(generator)
    named = discorl.collect_rollout(
        net=agent.net,
        params=state.params,
        env=env,
        env_state=env_state,
        timestep=timestep,
        num_steps=6,
        generator=generator,
    )
    assert_bit_equal(result, named)
