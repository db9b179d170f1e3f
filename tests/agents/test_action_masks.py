"""Actions that are never allowed leave the numbers of an agent that never had them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from discorl import tree
from discorl.agents.agent import Agent, adam_clip
from discorl.agents.update import update_agent
from discorl.ops.masks import mask_logits
from discorl.rules import UpdateRule
from discorl.rules.store import load_rule
from discorl.types import AgentState, Params, Rollout
from tests.builders import (
    RULES,
    double,
    random_rollout,
    random_rule_params,
    rng,
    small_agent,
)

KEPT = torch.tensor([1, 3, 4])
"""The actions that are allowed, of six."""
NUM_ACTIONS = 6


def fewer(small: Agent, params: Params) -> Params:
    """The parameters of the smaller agent: rows and columns of actions cut out where they are."""
    shapes = {name: p.shape for name, p in cast(nn.Module, small.net).named_parameters()}
    out = {}
    for name, p in params.items():
        for axis, (size, wanted) in enumerate(zip(p.shape, shapes[name], strict=True)):
            if size != wanted:  # of an LSTM's inputs, which action it is comes first
                kept = torch.cat([KEPT, torch.arange(NUM_ACTIONS, size)])
                p = p.index_select(axis, kept)
        out[name] = p
    return out


def of_small(rollout: Rollout) -> Rollout:
    """The rollout as the agent with fewer actions sees it."""
    numbers = torch.zeros(NUM_ACTIONS, dtype=torch.long)
    numbers[KEPT] = torch.arange(len(KEPT))
    logits = rollout.behaviour_logits[..., KEPT]
    return replace(rollout, actions=numbers[rollout.actions], behaviour_logits=logits)


def masked(rollout: Rollout) -> Rollout:
    """The same rollout with a mask."""
    mask = torch.zeros(*rollout.actions.shape, NUM_ACTIONS, dtype=torch.bool)
    mask[..., KEPT] = True
    logits = mask_logits(rollout.behaviour_logits, mask)
    return replace(rollout, action_mask=mask, behaviour_logits=logits)


def experience(seed: int) -> Rollout:
    rollout = random_rollout(num_steps=7, batch=4, num_actions=NUM_ACTIONS, seed=seed)
    choices = torch.randint(len(KEPT), rollout.actions.shape, generator=rng(seed))
    return double(replace(rollout, actions=KEPT[choices]))


def twins(rule: UpdateRule) -> tuple[Agent, AgentState, Agent, AgentState]:
    """An agent with six actions, and one with three of them and the same weights."""
    large = small_agent(rule, NUM_ACTIONS, optimiser=adam_clip(1e-2))
    small = small_agent(rule, len(KEPT), optimiser=adam_clip(1e-2))
    state = double(large.init_state(rng()))
    own = fewer(small, state.params)
    return large, state, small, double(fresh(small, own))


def fresh(agent: Agent, params: Params) -> AgentState:
    return AgentState(params, agent.optimiser.init(params), agent.rule.init_state(params))


def assert_close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def make(name: str) -> tuple[UpdateRule, Params]:
    """A rule in double precision, small and random or from its file."""
    if name not in RULES:
        loaded = load_rule(name)
        return loaded.rule, double(loaded.params)
    rule = RULES[name]()
    return rule, double(random_rule_params(rule))


NAMES = [*RULES, "disco-mini", pytest.param("disco103", marks=pytest.mark.disco103)]


@pytest.mark.parametrize("name", NAMES)
def test_masked_actions_give_the_numbers_of_an_agent_without_them(name: str) -> None:
    rule, rule_params = make(name)
    large, state, small, small_state = twins(rule)
    for seed in range(3):
        rollout = experience(seed)
        state, info = update_agent(large, rule_params, state, masked(rollout))
        small_state, small_info = update_agent(small, rule_params, small_state, of_small(rollout))
        assert_close(info.loss, small_info.loss)
        assert_close(info.losses, small_info.losses)
        assert_close(info.gradient_norm, small_info.gradient_norm)
        assert_same_targets(info.targets, small_info.targets)
        assert_close(fewer(small, state.params), small_state.params)
        assert_close(
            tree.leaves(state.rule.lifetime_rnn), tree.leaves(small_state.rule.lifetime_rnn)
        )
        shown = rule.diagnostics(info.predictions, info.targets, masked(rollout))
        assert_close(shown, rule.diagnostics(small_info.predictions, small_info.targets, rollout))


def assert_same_targets(targets: Any, small: Any) -> None:
    """Every number of the rule's; of those for each action, the allowed ones."""
    for field in fields(targets):
        x, y = getattr(targets, field.name), getattr(small, field.name)
        if is_dataclass(x):
            assert_same_targets(x, y)
        elif x is not None:
            if x.dim() == 3 and x.shape[-1] == NUM_ACTIONS and y.shape[-1] == len(KEPT):
                x = x[..., KEPT]
            assert_close(x, y)


@pytest.mark.parametrize("name", ["disco", "prior", "no-value", "disco-mini"])
def test_meta_gradients_are_those_of_an_agent_without_them(name: str) -> None:
    rule, rule_params = make(name)
    large, state, small, small_state = twins(rule)

    def meta_gradient(agent: Agent, state: AgentState, view: Any) -> list[Tensor]:
        params = {k: p.clone().requires_grad_() for k, p in rule_params.items()}
        for seed in range(2):
            rollout = view(experience(seed))
            state, _ = update_agent(agent, params, state, rollout, differentiable=True)
        shared = [p.square().sum() for name, p in state.params.items() if "torso" in name]
        total = torch.stack(shared).sum()
        return list(torch.autograd.grad(total, list(params.values()), materialize_grads=True))

    ours = meta_gradient(large, state, masked)
    theirs = meta_gradient(small, small_state, of_small)
    assert any(bool(g.abs().max() > 1e-8) for g in ours)
    for g, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(g, other, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", ["disco", "cmpo", "actor-critic", "policy-gradient"])
def test_a_mask_that_allows_everything_changes_nothing(name: str) -> None:
    rule, rule_params = make(name)
    agent = small_agent(rule, NUM_ACTIONS)
    state, rollout = double(agent.init_state(rng())), experience(0)
    everything = torch.ones(*rollout.actions.shape, NUM_ACTIONS, dtype=torch.bool)
    plain, _ = update_agent(agent, rule_params, state, rollout)
    with_mask, _ = update_agent(agent, rule_params, state, replace(rollout, action_mask=everything))
    assert_close(plain.params, with_mask.params)


@pytest.mark.parametrize("name", ["disco", "cmpo", "actor-critic", "policy-gradient"])
def test_masks_that_differ_from_step_to_step_leave_no_nan(name: str) -> None:
    rule, rule_params = make(name)
    agent = small_agent(rule, NUM_ACTIONS)
    state, rollout = double(agent.init_state(rng())), experience(0)
    mask = torch.rand(*rollout.actions.shape, NUM_ACTIONS, generator=rng(1)) < 0.4
    mask.scatter_(-1, rollout.actions.unsqueeze(-1), True)
    rollout = replace(
        rollout, action_mask=mask, behaviour_logits=mask_logits(rollout.behaviour_logits, mask)
    )
    for _ in range(3):
        state, info = update_agent(agent, rule_params, state, rollout)
        assert all(bool(x.isfinite().all()) for x in tree.leaves((state, info)))
