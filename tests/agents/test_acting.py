from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from discorl.agents.acting import check_rollout
from discorl.agents.agent import mlp_agent_net
from discorl.agents.update import update_agent
from discorl.errors import DiscorlError
from discorl.nets.agent_net import AgentNet
from discorl.nets.linear import init_params
from discorl.own_agent import collect_rollout
from discorl.rules import PolicyGradient
from discorl.types import EnvSpec, Params, TimeStep
from tests.builders import assert_bit_equal, disturbed, random_rollout, rng, small_agent


class Clock:
    """Shows the time; rewards name the action before; every fourth step ends an episode."""

    def __init__(self, num_envs: int = 2) -> None:
        self.num_envs = num_envs
        self.spec = EnvSpec((2,), 3)

    def reset(self, generator: torch.Generator) -> tuple[int, TimeStep]:
        del generator
        return 0, self._show(0, torch.zeros(self.num_envs))

    def step(self, state: int, actions: Tensor, generator: torch.Generator) -> tuple[int, TimeStep]:
        del generator
        now = state + 1
        return now, self._show(now, 100.0 * now + actions)

    def _show(self, now: int, reward: Tensor) -> TimeStep:
        observation = torch.tensor([[now, b] for b in range(self.num_envs)]).float()
        ended = now > 0 and now % 4 == 0
        return TimeStep(observation, reward, torch.full((self.num_envs,), 1.0 - ended))


@pytest.fixture
def net_and_params() -> tuple[AgentNet, Params]:
    net = mlp_agent_net(EnvSpec((2,), 3), PolicyGradient(), (5,))
    return net, disturbed(init_params(net, rng()), 0.3)


def test_time_is_aligned(net_and_params: tuple[AgentNet, Params]) -> None:
    """reward[t] and discount[t] came with observation[t], so they belong to action[t-1]."""
    env, generator = Clock(), rng()
    state, timestep = env.reset(generator)
    before = None
    for first in (0, 6, 12):
        rollout, state, timestep = collect_rollout(
            *net_and_params, env, state, timestep, 6, generator
        )
        for t in range(6):
            now = first + t
            assert rollout.observations[t].tolist() == [[now, 0], [now, 1]]
            ended = now > 0 and now % 4 == 0
            assert rollout.discounts[t].tolist() == [1.0 - ended] * 2
            if before is not None:
                assert rollout.rewards[t].tolist() == (100 * now + before).tolist()
            before = rollout.actions[t]
    assert state == 18
    assert timestep.observation[0, 0] == 18


def test_behaviour_logits_are_the_policy(net_and_params: tuple[AgentNet, Params]) -> None:
    net, params = net_and_params
    env = Clock(3)
    rollout, _, _ = collect_rollout(net, params, env, *env.reset(rng()), 5, rng())
    policy = functional_call(net, params, (rollout.observations.flatten(0, 1),))
    torch.testing.assert_close(rollout.behaviour_logits, policy.logits.unflatten(0, (5, 3)))


def test_actions_follow_the_policy() -> None:
    """Probabilities 1/2, 1/3, 1/6, whatever is seen."""
    net = mlp_agent_net(EnvSpec((2,), 3), PolicyGradient(), (5,))
    params = {k: torch.zeros_like(p) for k, p in init_params(net, rng()).items()}
    params["flat_heads.logits.bias"] = torch.tensor([3.0, 2.0, 1.0]).log()
    env = Clock(100)
    rollout, _, _ = collect_rollout(net, params, env, *env.reset(rng()), 100, rng(1))
    shares = torch.bincount(rollout.actions.flatten(), minlength=3) / 10_000
    torch.testing.assert_close(shares, torch.tensor([1 / 2, 1 / 3, 1 / 6]), atol=0.02, rtol=0)


def test_a_seed_is_a_rollout(net_and_params: tuple[AgentNet, Params]) -> None:
    env = Clock()

    def rollout(seed: int):
        return collect_rollout(*net_and_params, env, *env.reset(rng()), 20, rng(seed))[0]

    assert_bit_equal(rollout(1), rollout(1))
    assert not torch.equal(rollout(1).actions, rollout(2).actions)


def test_rollouts_can_be_trained_on() -> None:
    """Collected without a graph, but not as tensors that autograd refuses."""
    agent = small_agent(PolicyGradient(), 3, (2,))
    state = agent.init_state(rng())
    env = Clock()
    rollout, _, _ = collect_rollout(agent.net, state.params, env, *env.reset(rng()), 5, rng())
    assert not any(x.is_inference() for x in (rollout.observations, rollout.behaviour_logits))
    new, _ = update_agent(agent, {}, state, rollout)
    assert not torch.equal(
        new.params["flat_heads.logits.bias"], state.params["flat_heads.logits.bias"]
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("field", ["observations", "rewards"])
def test_numbers_that_are_not_finite_name_their_environment(field: str, value: float) -> None:
    rollout = random_rollout(num_steps=4, batch=5)
    check_rollout(rollout)
    bad = getattr(rollout, field).clone()
    bad[2, 3] = value
    with pytest.raises(DiscorlError, match=f"environment 3 sent {field}"):
        check_rollout(replace(rollout, **{field: bad}))
