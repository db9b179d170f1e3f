"""The one function: its two paths agree, its gradients are right, and it does no work twice."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from discorl import optim, tree
from discorl.agents.agent import Agent, adam_clip
from discorl.agents.network import with_params
from discorl.agents.update import loss_mask, masked_mean, update_agent
from discorl.nets.meta_net import MetaNetSizes
from discorl.ops.categorical import select_action
from discorl.rules import ActorCritic, DiscoRule, UpdateRule
from discorl.rules.disco import DiscoSettings
from discorl.rules.values import ValueHead
from discorl.types import AgentState, Params, Predictions, Rollout, UpdateInfo
from tests.builders import (
    DEEP_SIZES,
    RULES,
    SMALL_SIZES,
    SMALL_VALUE,
    assert_bit_equal,
    clone,
    disturbed,
    double,
    random_rollout,
    random_rule_params,
    rng,
    small_agent,
    small_disco,
    with_target_params,
)

ascent = optim.chain()  # hands gradients through: new parameters are old ones plus the gradient
descent = optim.scale_by_learning_rate(0.5)


def living_state(agent: Agent, seed: int = 0) -> AgentState:
    """An agent in the middle of its life: its heads say something, its target network differs."""
    state = agent.init_state(rng(seed))
    params = disturbed(state.params, 0.3, seed)
    state = AgentState(params, agent.optimiser.init(params), agent.rule.init_state(params))
    if state.rule.target_params is None:
        return state
    return with_target_params(state, disturbed(params, 0.1, seed + 1))


def updates(
    agent: Agent,
    rule_params: Params,
    state: AgentState,
    rollouts: list[Rollout],
    differentiable: bool = False,
) -> AgentState:
    for rollout in rollouts:
        state, _ = update_agent(agent, rule_params, state, rollout, differentiable=differentiable)
    return state


def require_grad(params: Params) -> Params:
    return {k: p.detach().clone().requires_grad_() for k, p in params.items()}


# --- two paths, one result -----------------------------------------------------------------------


@pytest.mark.parametrize("params_require_grad", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_plain_and_differentiable_paths_are_bit_equal(name: str, params_require_grad: bool) -> None:
    rule = RULES[name]()
    agent = small_agent(rule)
    rule_params = random_rule_params(rule)
    state = living_state(agent)
    rollouts = [random_rollout(seed=i) for i in range(4)]
    plain = updates(agent, rule_params, state, rollouts)
    if params_require_grad:
        state = replace(state, params=require_grad(state.params))
    followed = updates(agent, require_grad(rule_params), state, rollouts, differentiable=True)
    assert_bit_equal(plain, followed)


@pytest.fixture(params=[1, 2])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.usefixtures("num_threads")
def test_paths_are_bit_equal_at_medium_size() -> None:
    """Large enough that matrix products are split into blocks and over threads."""
    sizes = MetaNetSizes(prediction=90, hidden=40, lifetime_hidden=20)
    rule = DiscoRule(sizes=sizes, value_head=ValueHead(61, 30.0))
    agent = small_agent(rule, 5, (6, 5), torso=(64, 48), lstm_size=32, head_hidden=(24,))
    rule_params = random_rule_params(rule)
    rollouts = [random_rollout(15, 24, 5, (6, 5), seed=i) for i in range(3)]
    state = living_state(agent)
    plain = updates(agent, rule_params, state, rollouts)
    followed = updates(agent, require_grad(rule_params), state, rollouts, differentiable=True)
    assert_bit_equal(plain, followed)


def test_paths_report_the_same() -> None:
    rule = small_disco()
    agent = small_agent(rule)
    rule_params, state = random_rule_params(rule), living_state(agent)
    _, plain = update_agent(agent, rule_params, state, random_rollout())
    _, followed = update_agent(
        agent, require_grad(rule_params), state, random_rollout(), differentiable=True
    )
    assert_bit_equal(plain, followed)


@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_inputs_are_not_modified(name: str, differentiable: bool) -> None:
    rule = RULES[name]()
    agent = small_agent(rule)
    inputs = (random_rule_params(rule), living_state(agent), random_rollout())
    before = clone(inputs)
    flags = [x.requires_grad for x in tree.leaves(inputs)]
    update_agent(agent, *inputs, differentiable=differentiable)
    assert_bit_equal(inputs, before)
    assert [x.requires_grad for x in tree.leaves(inputs)] == flags


def test_plain_path_leaves_no_graph() -> None:
    rule = small_disco()
    agent = small_agent(rule)
    result = update_agent(
        agent, require_grad(random_rule_params(rule)), living_state(agent), random_rollout()
    )
    assert not any(x.requires_grad for x in tree.leaves(result))


def test_the_network_itself_is_not_trained() -> None:
    """Parameters are arguments: those the module was built with play no part and stay."""
    rule = small_disco()
    agent = small_agent(rule)
    net: Any = agent.net
    before = {k: p.detach().clone() for k, p in net.named_parameters()}
    update_agent(agent, random_rule_params(rule), living_state(agent), random_rollout())
    assert_bit_equal(dict(net.named_parameters()), before)
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("num_actions", [1, 2, 18])
@pytest.mark.parametrize("name", RULES)
def test_any_number_of_actions(name: str, num_actions: int) -> None:
    rule = RULES[name]()
    agent = small_agent(rule, num_actions)
    rollout = random_rollout(num_actions=num_actions)
    state, info = update_agent(agent, random_rule_params(rule), living_state(agent), rollout)
    assert tree.is_finite((state, info))


def test_shortest_rollout() -> None:
    rule = small_disco()
    agent = small_agent(rule)
    state, info = update_agent(
        agent, random_rule_params(rule), living_state(agent), random_rollout(num_steps=2, batch=1)
    )
    assert tree.is_finite((state, info))


def test_a_batch_of_masked_steps_teaches_nothing() -> None:
    """All steps start an episode, so none counts; nothing may become NaN of it."""
    rule = small_disco()
    agent = small_agent(rule, optimiser=ascent)
    rollout = random_rollout()
    rollout = replace(rollout, discounts=torch.zeros_like(rollout.discounts))
    state = living_state(agent)
    new, info = update_agent(agent, random_rule_params(rule), state, rollout)
    assert_bit_equal(new.params, state.params)
    assert info.loss == 0


# --- the inner gradient --------------------------------------------------------------------------


def naive_predictions(agent: Agent, params: Params, rollout: Rollout, like: Predictions):
    """Every head of every action, then the taken action's: nothing is shared or left out."""
    seen = rollout.observations.flatten(0, 1)
    rows = with_params(agent.net, params, lambda net: net.output(seen))
    out = {
        name: x.unflatten(0, rollout.actions.shape)
        for name in ("logits", "y", "v", "z", "q", "aux_pi")
        if (x := getattr(rows, name)) is not None
    }
    taken = {
        f"{name}_a": select_action(out.pop(name), rollout.actions)
        for name in ("z", "q", "aux_pi")
        if name in out
    }
    full = out | taken
    there = {f.name: getattr(like, f.name) for f in dataclasses.fields(like)}
    lengths = {name: len(x) for name, x in there.items() if x is not None}
    return type(like)(**{name: full[name][:length] for name, length in lengths.items()})


@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_gradient_holds_targets_constant(name: str, differentiable: bool) -> None:
    rule = RULES[name]()
    agent = small_agent(rule, optimiser=ascent)
    state = double(living_state(agent))
    rollout = double(random_rollout())
    rule_params = require_grad(double(random_rule_params(rule)))
    new, info = update_agent(agent, rule_params, state, rollout, differentiable=differentiable)

    params = require_grad(state.params)
    predictions = naive_predictions(agent, params, rollout, info.predictions)
    for x, y in zip(tree.leaves(predictions), tree.leaves(info.predictions), strict=True):
        torch.testing.assert_close(x, y)
    per_step, _ = rule.loss(predictions, tree.detach(info.targets), rollout)
    loss = masked_mean(per_step, loss_mask(rollout, rule.mask_episode_starts))
    grads = torch.autograd.grad(loss, list(params.values()), materialize_grads=True)
    torch.testing.assert_close(loss, info.loss)
    for (key, p), grad in zip(params.items(), grads, strict=True):
        torch.testing.assert_close(new.params[key] - p, grad, rtol=1e-6, atol=1e-12, msg=key)
    squares = sum(float(g.square().sum()) for g in grads)
    assert info.gradient_norm.item() == pytest.approx(squares**0.5)


def test_every_head_is_trained() -> None:
    """No parameter of the agent is without a gradient."""
    rule = small_disco()
    agent = small_agent(rule, optimiser=ascent)
    state = living_state(agent)
    new, _ = update_agent(agent, random_rule_params(rule), state, random_rollout())
    for name, p in state.params.items():
        assert not torch.equal(p, new.params[name]), name


def test_episode_starts_count_when_asked_to() -> None:
    rollout = random_rollout(num_steps=3, batch=1)
    rollout = replace(rollout, discounts=torch.tensor([[0.0], [1.0], [1.0]]))
    losses = []
    for mask in (True, False):
        rule = replace(small_disco(), mask_episode_starts=mask)
        agent = small_agent(rule)
        _, info = update_agent(agent, random_rule_params(rule), living_state(agent), rollout)
        per_step, _ = rule.loss(info.predictions, info.targets, rollout)
        losses.append((info.loss.item(), per_step.flatten().tolist()))
    (masked, (_, second)), (whole, both) = losses
    assert masked == pytest.approx(second, rel=1e-5)
    assert whole == pytest.approx(sum(both) / 2, rel=1e-5)


def test_mean_over_processes_is_asked_of_gradients_and_statistics() -> None:
    """``across`` is where processes meet; here it halves either the scalars or the rest."""
    rule = ActorCritic(num_bins=11, max_abs_value=5.0)
    agent = small_agent(rule, optimiser=ascent)
    state, rollout = double(living_state(agent)), double(random_rollout())
    alone, info = update_agent(agent, {}, state, rollout)

    halved, _ = update_agent(agent, {}, state, rollout, across=lambda x: x / 2 if x.ndim else x)
    for name, p in state.params.items():
        torch.testing.assert_close(halved.params[name] - p, (alone.params[name] - p) / 2)

    halved, half_info = update_agent(
        agent, {}, state, rollout, across=lambda x: x if x.ndim else x / 2
    )
    torch.testing.assert_close(
        halved.rule.advantage_moments.mean, alone.rule.advantage_moments.mean / 2
    )
    # Half as many steps count on average, so each weighs twice.
    for name, p in state.params.items():
        torch.testing.assert_close(halved.params[name] - p, (alone.params[name] - p) * 2)
    torch.testing.assert_close(half_info.loss, info.loss)
    torch.testing.assert_close(half_info.losses["value"], info.losses["value"] / 2)


# --- the meta-gradient ---------------------------------------------------------------------------


def check_meta_gradient(
    agent: Agent, rule_params: Params, state: AgentState, rollouts: list[Rollout]
) -> dict[str, Tensor]:
    """Compare d f / d rule_params with central differences, along a direction in each array.

    f is a random combination of the new parameters and of the lifetime LSTM's state.
    """

    def f(params: Params, differentiable: bool = False) -> Tensor:
        new = updates(agent, params, state, rollouts, differentiable)
        assert new.rule.lifetime_rnn is not None
        generator = rng(7)
        return torch.stack(
            [
                (x * torch.randn(x.shape, generator=generator, dtype=x.dtype)).sum()
                for x in [*new.params.values(), *new.rule.lifetime_rnn]
            ]
        ).sum()

    params = require_grad(rule_params)
    grads = torch.autograd.grad(f(params, differentiable=True), list(params.values()))
    result = dict(zip(params, grads, strict=True))
    eps = 1e-6
    for seed, (name, grad) in enumerate(result.items()):
        direction = torch.randn(grad.shape, generator=rng(seed), dtype=grad.dtype)
        up, down = (
            f(rule_params | {name: rule_params[name] + sign * eps * direction}) for sign in (1, -1)
        )
        expected = ((up - down) / (2 * eps)).item()
        assert (grad * direction).sum().item() == pytest.approx(expected, rel=1e-5, abs=1e-8), name
    return result


@pytest.mark.parametrize("sizes", [SMALL_SIZES, DEEP_SIZES], ids=["small", "deep"])
def test_meta_gradient_of_one_update(sizes: MetaNetSizes) -> None:
    """The first update's values and policies do not depend on the rule, so all of it counts."""
    rule = small_disco(sizes)
    agent = small_agent(rule, optimiser=descent)
    rule_params, state = double(random_rule_params(rule)), double(living_state(agent))
    grads = check_meta_gradient(agent, rule_params, state, [double(random_rollout())])
    for head in (
        "policy_target",
        "y_target",
        "z_target",
        "lifetime_input",
        "trajectory.z.layers.0",
    ):
        assert grads[f"{head}.weight"].abs().max() > 1e-6, head


def test_meta_gradient_through_several_updates() -> None:
    """Through y, z, the target network and the lifetime LSTM, over three updates.

    The meta-gradient holds values and policies constant, finite differences do not. So the heads
    for logits and q are cut off from the state and not trained: the rule has no influence on them.
    """
    weights = DiscoSettings(pi_cost=0.0, y_cost=1.0, z_cost=1.0, aux_pi_cost=0.0, q_cost=0.0)
    rule = DiscoRule(SMALL_SIZES, SMALL_VALUE, settings=weights)
    agent = small_agent(rule, optimiser=descent)
    cut = ("flat_heads.logits.weight", "action_model.heads.q.layers.1.weight")
    state = double(living_state(agent))
    target_params = state.rule.target_params
    assert target_params is not None
    for params in (state.params, target_params):
        for name in cut:
            params[name].zero_()
    rollouts = [double(random_rollout(seed=i)) for i in range(3)]
    rule_params = double(random_rule_params(rule))
    grads = check_meta_gradient(agent, rule_params, state, rollouts)
    for name in ("lifetime_rnn.gates.weight", "lifetime_gate.weight", "lifetime.z.layers.0.weight"):
        assert grads[name].abs().max() > 1e-6, name


def test_meta_gradient_stops_at_values() -> None:
    """Neither the value loss nor the value estimates carry a meta-gradient."""
    weights = DiscoSettings(pi_cost=0.0, y_cost=0.0, z_cost=0.0, aux_pi_cost=0.0, q_cost=1.0)
    rule = DiscoRule(SMALL_SIZES, SMALL_VALUE, settings=weights)
    agent = small_agent(rule, optimiser=descent)
    rule_params = require_grad(random_rule_params(rule))
    new = updates(agent, rule_params, living_state(agent), [random_rollout()] * 2, True)
    for name, p in new.params.items():
        grads = (
            torch.autograd.grad(
                p.sum(), list(rule_params.values()), allow_unused=True, retain_graph=True
            )
            if p.requires_grad
            else []
        )
        assert all(g is None or not g.any() for g in grads), name


def test_meta_gradient_reaches_the_first_parameters() -> None:
    rule = small_disco()
    agent = small_agent(rule, optimiser=adam_clip(1e-2))
    state = living_state(agent)
    params = require_grad(state.params)
    new = updates(
        agent, random_rule_params(rule), replace(state, params=params), [random_rollout()] * 2, True
    )
    total = torch.stack([p.sum() for p in new.params.values()]).sum()
    grads = torch.autograd.grad(total, list(params.values()))
    assert all(g.isfinite().all() for g in grads)
    assert all(g.any() for g in grads)


# --- no work twice -------------------------------------------------------------------------------


def count_calls(agent: Agent, differentiable: bool = False) -> tuple[Counter, Counter, UpdateInfo]:
    """Calls of each module of the agent's network in one update, and rows that went through it."""
    calls, rows = Counter(), Counter()

    def hook(name: str):
        def count(module: torch.nn.Module, args: tuple, output: object) -> None:
            del module, output
            calls[name] += 1
            rows[name] += args[0].shape[:-1].numel()

        return count

    net: Any = agent.net
    handles = [
        module.register_forward_hook(hook(name)) for name, module in net.named_modules() if name
    ]
    rule_params = random_rule_params(agent.rule)
    num_actions = agent.net.num_actions
    assert isinstance(num_actions, int)
    rollout = random_rollout(num_actions=num_actions)
    state = living_state(agent)
    _, info = update_agent(agent, rule_params, state, rollout, differentiable=differentiable)
    for handle in handles:
        handle.remove()
    return calls, rows, info


@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize(
    "name, expected", [("disco", 2), ("cmpo", 2), ("actor-critic", 1), ("policy-gradient", 1)]
)
def test_torso_runs_once_for_each_network(name: str, expected: int, differentiable: bool) -> None:
    """Once for the agent, once for the target network of the rule that has one."""
    calls, _, _ = count_calls(small_agent(RULES[name]()), differentiable)
    assert calls["torso"] == expected


@pytest.mark.parametrize("differentiable", [False, True])
def test_aux_pi_is_computed_for_taken_actions_of_the_agent_alone(differentiable: bool) -> None:
    calls, rows, _ = count_calls(small_agent(small_disco(), num_actions=5), differentiable)
    assert calls["action_model.heads.aux_pi"] == 1
    num_steps, batch = random_rollout().actions.shape
    assert rows["action_model.heads.aux_pi"] <= num_steps * batch


def flops(rule: UpdateRule, num_actions: int) -> int:
    agent = small_agent(rule, num_actions, lstm_size=4, head_hidden=(64,))
    rollout = random_rollout(num_actions=num_actions)
    rule_params, state = random_rule_params(rule), living_state(agent)
    with FlopCounterMode(display=False) as counter:
        update_agent(agent, rule_params, state, rollout)
    return counter.get_total_flops()


def test_actions_not_taken_get_no_backward_pass() -> None:
    """Each further action costs one forward pass of its z and q, online and target, and no more.

    The heads here are so large beside everything else that they make up the cost.
    """
    sizes = replace(
        SMALL_SIZES, prediction=200, embedding=(2, 1), lifetime_prediction_embedding=(2, 1)
    )
    rule = DiscoRule(sizes, ValueHead(201, 100.0))
    num_steps, batch = random_rollout().actions.shape
    forward_of_an_action = 2 * num_steps * batch * 64 * (200 + 201)
    cost = (flops(rule, 18) - flops(rule, 2)) / 16
    assert 2 * forward_of_an_action < cost < 2.3 * forward_of_an_action


def test_learns_where_the_caller_has_switched_gradients_off() -> None:
    rule = small_disco()
    agent = small_agent(rule)
    rule_params, state, rollout = (
        random_rule_params(rule),
        agent.init_state(rng()),
        random_rollout(),
    )
    want, _ = update_agent(agent, rule_params, state, rollout)
    with torch.no_grad():
        got, _ = update_agent(agent, rule_params, state, rollout)
    assert_bit_equal(got, want)
