"""Recurrent agents: acting and learning see the same memory, and it begins anew with episodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from discorl import optim, tree
from discorl.agents.agent import Agent, adam_clip, agent_net
from discorl.agents.burn_in import warm_up
from discorl.agents.network import with_params
from discorl.agents.replay import Replay
from discorl.agents.update import update_agent
from discorl.errors import DiscorlError
from discorl.meta.meta_value import MetaValue, ValueNet
from discorl.meta.objective import ObjectiveWeights
from discorl.meta.window import Window
from discorl.nets.agent_net import AgentNet
from discorl.nets.lstm import LSTM
from discorl.nets.net_config import NetConfig
from discorl.nets.torsos import MLPTorso
from discorl.own_agent import collect_rollout
from discorl.rules import PolicyGradient, UpdateRule
from discorl.types import AgentState, EnvSpec, LSTMState, Params, Rollout
from tests.agents.test_acting import Clock
from tests.builders import (
    RULES,
    assert_bit_equal,
    disturbed,
    double,
    random_rollout,
    random_rule_params,
    rng,
    small_disco,
    with_target_params,
)
from tests.golden.meta_gradient import through

CORE = 5
NET = NetConfig(torso=(7, 6), action_lstm=4, head_hidden=(6,), core_lstm=CORE)


def recurrent_agent(
    rule: UpdateRule,
    observation_shape: tuple[int, ...] = (4,),
    optimiser: optim.Transform | None = None,
    burn_in: int = 0,
) -> Agent:
    net = agent_net(EnvSpec(observation_shape, 3), rule, NET)
    return Agent(net, rule, optimiser or adam_clip(1e-2), burn_in=burn_in)


def living_state(agent: Agent) -> AgentState:
    params = disturbed(agent.init_state(rng()).params, 0.5)
    state = AgentState(params, agent.optimiser.init(params), agent.rule.init_state(params))
    if state.rule.target_params is None:
        return state
    return with_target_params(state, disturbed(params, 0.2, 3))


def rollout_with_state(num_steps: int = 6, batch: int = 3, seed: int = 0) -> Rollout:
    generator = rng(seed + 100)
    state = LSTMState(*(torch.randn(1, batch, CORE, generator=generator) for _ in range(2)))
    return replace(random_rollout(num_steps, batch, seed=seed), memory=state)


def step_by_step(net: AgentNet, rollout: Rollout) -> tuple[Tensor, LSTMState]:
    """Logits of acting, one trajectory and one step at a time, with zeros at each new episode."""
    assert net.core is not None
    num_steps, batch = rollout.actions.shape
    logits = torch.zeros_like(rollout.behaviour_logits)
    last = []
    for b in range(batch):
        state = tree.map(lambda x, b=b: x[0, b : b + 1], rollout.memory)
        for t in range(num_steps):
            if rollout.discounts[t, b] == 0:
                state = tree.map(torch.zeros_like, state)
            state = net.core.step(net.torso(rollout.observations[t, b : b + 1]), state)
            logits[t, b] = net.flat_heads["logits"](state.hidden)[0]
        last.append(state)
    return logits, tree.map(lambda *xs: torch.cat(xs), *last)


def double_net(rule: UpdateRule, params: Params | None = None) -> tuple[AgentNet, Params]:
    """A network that holds the parameters that come with it, in float64."""
    net = AgentNet(MLPTorso(4, (7, 6)), 6, 3, rule.heads(3), 4, (6,), core=LSTM(6, CORE)).double()
    if params is None:
        params = double(disturbed(Agent(net, rule, adam_clip(1e-2)).init_state(rng()).params, 0.5))
    net.load_state_dict(params)
    return net.requires_grad_(False), params


@pytest.mark.parametrize("first_is_reset", [False, True])
def test_unroll_is_stepping_one_by_one(first_is_reset: bool) -> None:
    rule = small_disco()
    net, params = double_net(rule)
    rollout = double(rollout_with_state(8, 4))
    rollout.discounts[0] = 0.0 if first_is_reset else 1.0
    assert (rollout.discounts[1:] == 0).any()
    expected, last = step_by_step(net, rollout)
    reader = rule.reader(double(random_rule_params(rule)))

    def everything(net: AgentNet) -> tuple[Any, ...]:
        return (
            net.unroll(rollout, reader, differentiable=False),
            net.read(rollout, reader),
            net.validate(rollout),
            net.predict(rollout),
            net.memory_after(rollout),
        )

    online, target, validated, predictions, memory = with_params(net, params, everything)
    for logits in (online.predictions.logits, target.predictions.logits, validated[0]):
        torch.testing.assert_close(logits, expected)
    for a, b in zip(tree.leaves(online.reading), tree.leaves(target.reading), strict=True):
        torch.testing.assert_close(a, b)
    assert_bit_equal(predictions, online.predictions)
    torch.testing.assert_close(memory.hidden, last.hidden)
    torch.testing.assert_close(memory.cell, last.cell)


# --- acting ---------------------------------------------------------------------------------------


def act(agent: Agent, params: Params, lengths: list[int], seed: int = 0) -> list[Rollout]:
    """Rollouts one after the other; episodes of the Clock end at every fourth step."""
    env, generator = Clock(3), rng(seed)
    env_state, timestep = env.reset(generator)
    core_state, rollouts = None, []
    for n in lengths:
        rollout, env_state, timestep, core_state = collect_rollout(
            agent.net, params, env, env_state, timestep, n, generator, core_state=core_state
        )
        rollouts.append(rollout)
    return rollouts


def test_learning_sees_the_policy_that_acted() -> None:
    """The unroll from the stored state gives the behaviour logits, rollout after rollout."""
    agent = recurrent_agent(PolicyGradient(), (2,))
    params = living_state(agent).params
    rollouts = act(agent, params, [6, 5, 2, 7])
    for rollout in rollouts:
        predictions = with_params(agent.net, params, lambda net, r=rollout: net.predict(r))
        torch.testing.assert_close(predictions.logits, rollout.behaviour_logits)
    first, second = rollouts[0].memory, rollouts[1].memory
    assert first is not None and second is not None
    assert not first.hidden.any()
    assert second.hidden.shape == (1, 3, CORE)
    assert second.hidden.any(), "the state is carried over"


def test_the_first_rollout_of_an_episode_is_not_touched_by_the_last_one() -> None:
    """Step 4 begins an episode: whatever the state before it, the policy there is the same."""
    agent = recurrent_agent(PolicyGradient(), (2,))
    params = living_state(agent).params
    (rollout,) = act(agent, params, [8])
    assert rollout.memory is not None
    other = replace(rollout, memory=tree.map(lambda x: x + 3.0, rollout.memory))
    first, second = (
        with_params(agent.net, params, lambda net, r=r: net.predict(r)).logits
        for r in (rollout, other)
    )
    same = (first == second).flatten(1).all(1)
    assert same.tolist() == [False] * 4 + [True] * 4


def test_rollouts_of_recurrent_agents_can_be_stored_and_trained_on() -> None:
    agent = recurrent_agent(small_disco(), (2,))
    state = living_state(agent)
    rollouts = act(agent, state.params, [6, 6])
    assert not any(x.is_inference() for r in rollouts for x in tree.leaves(r))
    replay = Replay(10)
    for rollout in rollouts:
        replay.add(rollout)
    batch = replay.sample(50, rng())
    assert batch.memory is not None and rollouts[1].memory is not None
    assert batch.memory.hidden.shape == (1, 50, CORE)
    # A trajectory keeps its own state: found by its observations, which show the time.
    for column in range(50):
        source = rollouts[int(batch.observations[0, column, 0] == 6)].memory
        env = int(batch.observations[0, column, 1])
        assert source is not None
        assert torch.equal(batch.memory.cell[0, column], source.cell[0, env])
    new, info = update_agent(agent, random_rule_params(agent.rule), state, batch)
    assert tree.is_finite((new, info))
    assert not torch.equal(new.params["core.gates.weight"], state.params["core.gates.weight"])


def test_a_core_without_its_state_is_refused() -> None:
    agent = recurrent_agent(PolicyGradient(), (2,))
    params = living_state(agent).params
    env = Clock(2)
    with pytest.raises(DiscorlError, match="core_state=None"):
        collect_rollout(agent.net, params, env, *env.reset(rng()), 3, rng())
    _, timestep = env.reset(rng())
    with pytest.raises(DiscorlError, match="initial_memory"):
        agent.net.step(timestep, None)
    with pytest.raises(DiscorlError, match="initial_memory"):
        agent.net.output(timestep.observation)
    with pytest.raises(DiscorlError, match=r"LSTM\(6, 3\)"):
        AgentNet(MLPTorso(4, (6,)), 6, 3, PolicyGradient().heads(3), core=LSTM(5, 3))


def test_networks_without_a_core_take_and_return_nothing() -> None:
    agent = Agent(agent_net(EnvSpec((2,), 3), PolicyGradient()), PolicyGradient(), adam_clip(1e-2))
    params = agent.init_state(rng()).params
    env = Clock(2)
    plain = collect_rollout(agent.net, params, env, *env.reset(rng()), 3, rng())
    *same, state = collect_rollout(
        agent.net, params, env, *env.reset(rng()), 3, rng(), core_state=None
    )
    assert_bit_equal(plain[0], same[0])
    assert state is None
    assert plain[0].memory is None


# --- learning -------------------------------------------------------------------------------------


@pytest.mark.parametrize("burn_in", [0, 2])
@pytest.mark.parametrize("name", RULES)
def test_plain_and_differentiable_paths_are_bit_equal(name: str, burn_in: int) -> None:
    rule = RULES[name]()
    agent = recurrent_agent(rule, burn_in=burn_in)
    rule_params, start = random_rule_params(rule), living_state(agent)
    plain = followed = start
    leaves = {k: p.clone().requires_grad_() for k, p in rule_params.items()}
    for i in range(3):
        rollout = rollout_with_state(seed=i)
        plain, _ = update_agent(agent, rule_params, plain, rollout)
        followed, _ = update_agent(agent, leaves, followed, rollout, differentiable=True)
    assert_bit_equal(plain, followed)


def first_steps(rollout: Rollout, num_steps: int) -> Rollout:
    fields = ("observations", "actions", "rewards", "discounts", "behaviour_logits")
    return replace(rollout, **{name: getattr(rollout, name)[:num_steps] for name in fields})


def later_steps(rollout: Rollout, num_steps: int, memory: LSTMState) -> Rollout:
    fields = ("observations", "actions", "rewards", "discounts", "behaviour_logits")
    later = {name: getattr(rollout, name)[num_steps:] for name in fields}
    return replace(rollout, **later, memory=tree.map(lambda x: x.unsqueeze(0), memory))


@pytest.mark.parametrize("burn_in", [1, 3])
def test_burn_in_is_acting_up_to_the_first_step_that_is_learnt_from(burn_in: int) -> None:
    """The memory at that step, of either network, is what stepping there one by one leads to."""
    rule = small_disco()
    rollout = double(rollout_with_state(8))
    rollout.discounts[:] = 1.0  # so that every step before leaves its mark
    net, params = double_net(rule)
    target_net, target_params = double_net(rule, disturbed(params, 0.2, 3))
    rest = [
        later_steps(rollout, burn_in, step_by_step(n, first_steps(rollout, burn_in))[1])
        for n in (net, target_net)
    ]
    agent = Agent(net, rule, optim.chain(), burn_in=burn_in)
    state = double(agent.init_state(rng()))
    state = with_target_params(replace(state, params=params), target_params)
    rule_params = double(random_rule_params(rule))
    _, info = update_agent(agent, rule_params, state, rollout)
    torch.testing.assert_close(info.predictions.logits, step_by_step(net, rest[0])[0])
    assert info.targets.target_logits is not None
    torch.testing.assert_close(info.targets.target_logits, step_by_step(target_net, rest[1])[0])


def test_burn_in_steps_warm_the_state_and_teach_nothing() -> None:
    """The update is that of the rest alone, begun in the state that the first steps lead to."""
    rule = small_disco()
    ascent = optim.chain()
    warming = recurrent_agent(rule, optimiser=ascent, burn_in=3)
    other = replace(warming, burn_in=0)
    rule_params, state = random_rule_params(rule), living_state(warming)
    state = with_target_params(state, state.params)  # so that both networks warm up alike
    rollout = rollout_with_state(8)
    rollout.discounts[:4] = 1.0
    rest = warm_up(warming.net, state.params, rollout, 3)
    assert rest.actions.shape[0] == 5
    assert rest.memory is not None
    got, _ = update_agent(warming, rule_params, state, rollout)
    want, _ = update_agent(other, rule_params, state, rest)
    assert_bit_equal(got, want)

    changed = replace(rollout, rewards=rollout.rewards.clone(), actions=rollout.actions.clone())
    changed.rewards[:4] += 5.0  # the reward at step 3 is that of the last burn-in action
    changed.actions[:3] = (changed.actions[:3] + 1) % 3
    assert_bit_equal(update_agent(warming, rule_params, state, changed)[0], got)
    seen = replace(rollout, observations=rollout.observations.clone())
    seen.observations[1] += 1.0
    moved, _ = update_agent(warming, rule_params, state, seen)
    assert not torch.equal(moved.params["core.gates.weight"], got.params["core.gates.weight"])


def test_the_target_network_warms_up_by_itself() -> None:
    rule = small_disco()
    agent = recurrent_agent(rule, burn_in=2)
    rule_params, state = random_rule_params(rule), living_state(agent)
    assert state.rule.target_params is not None
    rollout = rollout_with_state(6)
    _, info = update_agent(agent, rule_params, state, rollout)
    own = warm_up(agent.net, state.rule.target_params, rollout, 2)
    predictions = with_params(agent.net, state.rule.target_params, lambda net: net.predict(own))
    assert info.targets.target_logits is not None
    torch.testing.assert_close(info.targets.target_logits, predictions.logits)


def test_a_rollout_without_a_state_begins_with_zeros() -> None:
    rule = small_disco()
    agent = recurrent_agent(rule)
    rule_params, state = random_rule_params(rule), living_state(agent)
    rollout = random_rollout()
    zeros = LSTMState(torch.zeros(1, 3, CORE), torch.zeros(1, 3, CORE))
    got, _ = update_agent(agent, rule_params, state, rollout)
    want, _ = update_agent(agent, rule_params, state, replace(rollout, memory=zeros))
    assert_bit_equal(got, want)


def test_burn_in_needs_a_memory() -> None:
    rule = PolicyGradient()
    net = agent_net(EnvSpec((4,), 3), rule)
    with pytest.raises(DiscorlError, match="core-lstm"):
        Agent(net, rule, adam_clip(1e-2), burn_in=1)


def test_both_memory_modes_of_discovery_agree_on_a_recurrent_agent() -> None:
    rule = small_disco()
    agent = recurrent_agent(rule)
    value = MetaValue(ValueNet(MLPTorso(4, (5,)), 5))
    window = Window(agent, value, ObjectiveWeights())
    args = (
        double(random_rule_params(rule)),
        double(living_state(agent)),
        double(value.init_state(rng())),
        [double(rollout_with_state(seed=i)) for i in range(2)],
        double(rollout_with_state(seed=5)),
    )
    plain = through(window, args, "plain")
    again = through(window, args, "recompute")
    for name, g in plain.gradient.items():
        torch.testing.assert_close(again.gradient[name], g, rtol=1e-6, atol=1e-9)
    assert any(bool(g.any()) for g in plain.gradient.values())


def test_output_takes_the_core_one_step_on() -> None:
    """For a state beside the rollout, such as the last one of an episode that was cut off."""
    net, _ = double_net(small_disco())
    rollout = double(rollout_with_state(4, 3))
    rollout.discounts[-1] = 1.0
    logits, _ = step_by_step(net, rollout)
    _, before = step_by_step(net, first_steps(rollout, 3))
    torch.testing.assert_close(net.output(rollout.observations[-1], before).logits, logits[-1])
