"""A time limit is not an end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from discorl.agents.acting import act, begin
from discorl.agents.agent import Agent, agent_net
from discorl.agents.network import with_params
from discorl.envs.gymnasium import GymnasiumEnv, make_vector
from discorl.nets.linear import init_params
from discorl.nets.net_config import NetConfig
from discorl.own_agent import collect_rollout
from discorl.training.stats import EpisodeStats
from discorl.types import AgentOutput, AgentState, EnvSpec, Rollout
from tests.builders import RULES, disturbed, rng, small_agent
from tests.envs.gym_examples import Corridor


def small(name: str) -> tuple[Agent, AgentState]:
    agent = small_agent(RULES[name](), 2, (3,))
    state = agent.init_state(rng())
    return agent, replace(state, params=disturbed(state.params, 0.5))


def collect(
    name: str, mode: AutoresetMode, bootstrap: bool, num_steps: int = 9, limit: int = 4
) -> tuple[Rollout, Any, GymnasiumEnv]:
    agent, state = small(name)
    env = GymnasiumEnv(make_vector([lambda: Corridor(9, limit)] * 2, "sync", mode))
    start = env.reset(rng())
    rule = agent.rule if bootstrap else None
    rollout, _, _ = collect_rollout(
        agent.net, state.params, env, *start, num_steps, rng(1), bootstrap=rule
    )
    return rollout, (agent, state), env


def value_at(name: str, output: AgentOutput) -> Tensor:
    """V by the book."""
    if name == "actor-critic":
        assert output.v is not None
        return RULES[name]().value_head.value(output.v)  # pyright: ignore[reportAttributeAccessIssue]
    assert output.q is not None
    q = RULES[name]().value_head.value(output.q)  # pyright: ignore[reportAttributeAccessIssue]
    return (torch.softmax(output.logits, -1) * q).sum(-1)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("name", ["disco", "actor-critic"])
def test_the_last_reward_includes_the_value_of_what_was_cut_off(
    name: str, mode: AutoresetMode
) -> None:
    plain, (agent, state), _ = collect(name, mode, bootstrap=False)
    rollout, _, _ = collect(name, mode, bootstrap=True)
    assert torch.equal(plain.actions, rollout.actions)
    added = rollout.rewards - plain.rewards
    assert added.abs().max(1).values.nonzero().flatten().tolist() == (
        [4] if mode == AutoresetMode.NEXT_STEP else [4, 8]
    ), "in the step that the limit falls on, and in no other"
    # Four steps of the corridor lead to as many places as there were ones among the actions.
    place = plain.actions[:4].sum(0)
    final = torch.stack([place / 10, torch.tensor([0.4, 0.4]), torch.tensor([0.1, 0.1])], 1)
    output = with_params(agent.net, state.params, lambda net: net.output(final))
    expected = agent.rule.returns.discount * value_at(name, output)
    torch.testing.assert_close(added[4], expected.detach(), rtol=1e-4, atol=1e-5)
    assert expected.abs().min() > 1e-3
    assert torch.equal(rollout.discounts, plain.discounts), "nothing bootstraps from the reset"


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_recurrent_agent_values_the_cut_off_with_what_it_remembers(mode: AutoresetMode) -> None:
    """One copy is cut off after 4 steps and the other after 6: each has its own memory."""
    rule = RULES["disco"]()
    net = agent_net(EnvSpec((3,), 2), rule, NetConfig((7,), 4, (6,), core_lstm=5))
    params = disturbed(init_params(net, rng()), 0.8)
    net.load_state_dict(params)
    assert net.core is not None
    rollouts = []
    for bootstrap in (None, rule):
        env = GymnasiumEnv(make_vector([lambda n=n: Corridor(9, n) for n in (4, 6)], "sync", mode))
        start = begin(net, env, rng())
        rollouts.append(act(net, params, env, start, 7, bootstrap)[0])
    plain, rollout = rollouts
    added = rollout.rewards - plain.rewards
    assert added.nonzero().tolist() == [[4, 0], [6, 1]]
    for b, limit in enumerate((4, 6)):
        memory = net.core.zero_state(1)
        for observation in rollout.observations[:limit, b : b + 1]:
            memory = net.core.step(net.torso(observation), memory)
        place = float(plain.actions[:limit, b].sum())
        final = torch.tensor([[place / 10, limit / 10, 0.1]])
        value = value_at("disco", net.output(final, memory))
        expected = rule.returns.discount * value
        torch.testing.assert_close(added[limit, b : b + 1], expected, rtol=1e-4, atol=1e-5)
        forgetful = value_at("disco", net.output(final, net.core.zero_state(1)))
        assert (value - forgetful).abs() > 1e-3


def test_statistics_know_the_true_rewards() -> None:
    rollout, _, env = collect("disco", AutoresetMode.SAME_STEP, bootstrap=True)
    plain, _, _ = collect("disco", AutoresetMode.SAME_STEP, bootstrap=False)
    assert plain.raw_rewards is None
    assert rollout.raw_rewards is not None
    assert torch.equal(rollout.raw_rewards, plain.rewards)
    finished = EpisodeStats(env.spec, 2).observe(rollout)
    assert finished == EpisodeStats(env.spec, 2).observe(plain)
    assert [n for _, n in finished] == [4.0] * 4


@pytest.mark.parametrize("name", ["policy-gradient", "no-value"])
def test_a_rule_without_values_terminates(name: str) -> None:
    rollout, _, _ = collect(name, AutoresetMode.SAME_STEP, bootstrap=True)
    plain, _, _ = collect(name, AutoresetMode.SAME_STEP, bootstrap=False)
    assert torch.equal(rollout.rewards, plain.rewards)


def test_a_true_end_gets_nothing() -> None:
    agent, state = small("actor-critic")
    env = GymnasiumEnv(make_vector([lambda: Corridor(1, limit=1)] * 2))
    rollout, _, _ = collect_rollout(
        agent.net, state.params, env, *env.reset(rng()), 30, rng(1), bootstrap=agent.rule
    )
    arrived = rollout.actions[:-1] == 1
    assert arrived.any() and not arrived.all()
    assert torch.equal(rollout.rewards[1:][arrived], torch.full((int(arrived.sum()),), 1.1))
    assert (rollout.rewards[1:][~arrived] != 0).all()
