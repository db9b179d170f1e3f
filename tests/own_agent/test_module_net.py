"""A module by its plain forward gives the numbers that ``AgentNet`` gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from discorl import optim, tree
from discorl.agents.agent import Agent
from discorl.agents.network import with_params
from discorl.agents.update import update_agent
from discorl.ops import rows as row_blocks
from discorl.own_agent import ModuleNet
from discorl.own_agent.update_rule import DiscoUpdateRule
from discorl.rules.base import UpdateRule
from discorl.types import AgentState, Params, ReadUnroll, Rollout, TimeStep, UpdateInfo
from tests.builders import (
    GOLDEN,
    RULES,
    assert_bit_equal,
    disturbed,
    double,
    random_rollout,
    random_rule_params,
    rng,
    small_agent,
    small_disco,
    with_target_params,
)
from tests.golden.agents import SETTINGS, agent_name, agent_params, disco_rule, net_for
from tests.golden.files import group, load, rollout_of
from tests.own_agent.own_agents import PlainAgent, RecurrentAgent, WrappedNet

PREFIX = "module.net."
gradient = optim.chain()  # hands gradients through: new parameters are old ones plus the gradient


def prefixed(state: AgentState) -> AgentState:
    """The same state for a wrapped network."""

    def rename(x: dict) -> dict:
        return {PREFIX + name: p for name, p in x.items()}

    target = state.rule.target_params
    return AgentState(
        rename(state.params),
        state.optimiser,
        replace(state.rule, target_params=target and rename(target)),
    )


def both_ways(rule: UpdateRule, rollout: Rollout) -> list[tuple[AgentState, UpdateInfo]]:
    """An update by ``AgentNet`` and by the same network behind its forward, in float64."""
    agent = small_agent(rule, optimiser=gradient)
    state = agent.init_state(rng())
    state = AgentState(disturbed(state.params, 0.3), state.optimiser, state.rule)
    if state.rule.target_params is not None:
        state = with_target_params(state, disturbed(state.params, 0.1))
    state, rollout = double(state), double(rollout)
    rule_params = double(random_rule_params(rule))
    net = ModuleNet(WrappedNet(agent.net), rule.heads(3), torch.float64)  # pyright: ignore
    wrapped = Agent(net, rule, gradient)
    return [
        update_agent(agent, rule_params, state, rollout),
        update_agent(wrapped, rule_params, prefixed(state), rollout),
    ]


@pytest.mark.parametrize("rows", [1, 7, 2048])
@pytest.mark.parametrize("name", RULES)
def test_updates_equal_those_of_agent_net(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_blocks, "ROWS_PER_BLOCK", rows)
    (ours, info), (theirs, their_info) = both_ways(RULES[name](), random_rollout())
    for key, p in ours.params.items():
        torch.testing.assert_close(theirs.params[PREFIX + key], p, rtol=1e-9, atol=1e-12)
    for x, y in zip(tree.leaves(info.targets), tree.leaves(their_info.targets), strict=True):
        torch.testing.assert_close(y, x, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(their_info.loss, info.loss, rtol=1e-9, atol=0)
    torch.testing.assert_close(
        tree.leaves(theirs.rule), tree.leaves(ours.rule), rtol=1e-9, atol=1e-12
    )


def test_meta_gradients_pass() -> None:
    """The adapter serves discovery too: its differentiable path has the same meta-gradient."""
    rule = small_disco()
    agent = small_agent(rule, optimiser=gradient)
    start = double(agent.init_state(rng()))
    rollout = double(random_rollout())
    params = double(random_rule_params(rule))
    net = ModuleNet(WrappedNet(agent.net), rule.heads(3), torch.float64)  # pyright: ignore
    results = []
    for learner, state in ((agent, start), (Agent(net, rule, gradient), prefixed(start))):
        meta = {k: p.clone().requires_grad_() for k, p in params.items()}
        new, _ = update_agent(learner, meta, state, rollout, differentiable=True)
        loss = sum(p.square().sum() for p in new.params.values())
        results.append(torch.autograd.grad(loss, list(meta.values()), materialize_grads=True))  # pyright: ignore
    assert any(bool(g.any()) for g in results[0])
    torch.testing.assert_close(results[1], results[0], rtol=1e-8, atol=1e-12)


def test_the_other_methods_equal_those_of_agent_net() -> None:
    rule = small_disco()
    net: Any = small_agent(rule).net
    rollout = random_rollout()
    now = TimeStep(rollout.observations[0], rollout.rewards[0], rollout.discounts[0])
    wrapped = ModuleNet(WrappedNet(net), rule.heads(3))
    for method in (
        lambda net: net.output(now.observation),
        lambda net: net.step(now, net.initial_memory(3)),
        lambda net: net.validate(rollout),
        lambda net: net.predict(rollout),
    ):
        torch.testing.assert_close(tree.leaves(method(wrapped)), tree.leaves(method(net)))


def test_the_golden_learner() -> None:
    """Three steps of the JAX reference, through ``DiscoUpdateRule`` on a plain module."""
    arrays = load(GOLDEN / "disco_small_learner.npz")
    golden_rule, rule_params = disco_rule(arrays)
    params = agent_params(group(arrays, "params_0"), "y")
    agent = WrappedNet(net_for(params, golden_rule))
    agent.net.load_state_dict(params)
    rule = DiscoUpdateRule(golden_rule, rule_params)
    target = agent_params(group(arrays, "target_params_0"), "y")
    start = rule.init_state(agent)
    start = replace(start, target_params={PREFIX + k: p for k, p in target.items()})
    chain = optim.chain(
        optim.scale_by_adam(),
        optim.clip(1.0),
        optim.scale_by_learning_rate(SETTINGS.disco_learning_rate),
    )
    own = {PREFIX + k: p for k, p in params.items()}
    state = AgentState(own, chain.init(own), start)
    for i in range(3):
        rollout = rollout_of(group(arrays, f"rollout_{i}"))
        state, info = rule.update(agent, chain, state, rollout)
        want = float(arrays[f"log_{i}/total_loss"])
        assert float(info.loss) == pytest.approx(want, rel=2e-5)
        for name, array in group(arrays, f"params_{i + 1}").items():
            got = state.params[PREFIX + agent_name(name).replace("second", "y")]
            scale = abs(array).max()
            error = (got - torch.from_numpy(array.T)).abs().max() / max(float(scale), 1e-12)
            assert float(error) <= 1e-4, (i, name)


# --- memory --------------------------------------------------------------------------------------


def test_a_recurrent_agent_is_reset_where_episodes_begin() -> None:
    """Each stretch between resets is what the agent says of it alone."""
    rule = small_disco()
    agent = RecurrentAgent(rule.heads(3))
    net = ModuleNet(agent, rule.heads(3))
    discounts = torch.ones(7, 2)
    discounts[3, 0] = discounts[0, 1] = discounts[5, 1] = 0
    stored = (torch.randn(1, 2, 5), torch.randn(1, 2, 5))
    rollout = random_rollout(num_steps=7, batch=2)
    rollout = replace(rollout, discounts=discounts, memory=stored)
    heads, last = net.heads_of(rollout)

    fresh = tuple(x[0] for x in agent.initial_state(1))
    before = [tuple(x[0, b] for x in stored) for b in range(2)]
    stretches = [(0, 0, 3, before[0]), (0, 3, 7, fresh), (1, 0, 5, fresh), (1, 5, 7, fresh)]
    for b, start, end, state in stretches:
        state = tuple(x.unsqueeze(0) for x in state)
        for t in range(start, end):
            out, state = agent(rollout.observations[t, b : b + 1], state)
            for name, x in out.items():
                torch.testing.assert_close(heads[name][t, b], x[0])
        if end == 7:
            torch.testing.assert_close([x[b] for x in last], [x[0] for x in state])
    torch.testing.assert_close(net.memory_after(rollout), last)


def test_acting_step_by_step_is_the_unroll() -> None:
    rule = small_disco()
    agent = RecurrentAgent(rule.heads(3))
    net = ModuleNet(agent, rule.heads(3))
    rollout = random_rollout(num_steps=7, batch=2)
    assert bool((rollout.discounts == 0).any())
    memory, steps = net.initial_memory(2), []
    for observation, reward, discount in zip(
        rollout.observations, rollout.rewards, rollout.discounts, strict=True
    ):
        before = memory
        logits, memory = net.step(TimeStep(observation, reward, discount), memory)
        steps.append(logits)
        if bool((discount == 1).all()):
            assert_bit_equal(net.output(observation, before).logits, logits)
    torch.testing.assert_close(torch.stack(steps), net.predict(rollout).logits)
    torch.testing.assert_close(memory, net.memory_after(rollout))


def test_memory_carries_gradients_through_time() -> None:
    rule = small_disco()
    agent = RecurrentAgent(rule.heads(3))
    params: Params = {f"module.{k}": p for k, p in agent.named_parameters()}
    rollout = replace(random_rollout(), discounts=torch.ones(6, 3))
    reader = rule.reader(random_rule_params(rule))
    unroll = with_params(
        ModuleNet(agent, rule.heads(3)),
        params,
        lambda net: net.unroll(rollout, reader, differentiable=False),
    )
    assert isinstance(unroll, ReadUnroll)
    last = unroll.predictions.z_a[-1].sum()
    (by_first,) = torch.autograd.grad(last, params["module.first"])
    assert bool(by_first.any())
    assert not any(x.requires_grad for x in unroll.reading.z)


def test_only_the_taken_action_is_trained() -> None:
    """The loss reaches z, q and aux_pi of the action that was taken, and of no other."""
    rule = small_disco()
    agent = PlainAgent(rule.heads(3))
    rollout = random_rollout()
    rollout = replace(rollout, actions=torch.full_like(rollout.actions, 1))
    disco = DiscoUpdateRule(rule, random_rule_params(rule))
    disco.loss(agent, rollout, disco.init_state(agent)).loss.backward()
    for name in ("z", "q", "aux_pi"):
        layer = agent.heads.layers[name]
        grad = layer.bias.grad.reshape(agent.heads.shapes[name])  # pyright: ignore
        assert bool(grad[1].any())
        assert not bool(grad[[0, 2]].any()), name
