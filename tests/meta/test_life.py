"""The loop over updates: what it hands on, what it leaves alone, what can be differentiated."""

from __future__ import annotations

import pytest
import torch

from discorl import tree
from discorl.agents.update import update_agent
from discorl.meta.life import Graph, Life, Update, live
from discorl.types import Params
from tests.builders import assert_bit_equal
from tests.golden.given_rollouts import GivenRollouts
from tests.meta.test_estimators import inputs


def lives(
    rule_params: Params, graph: Graph = "none", judged: bool = True
) -> tuple[Life[int], list[Update[int]]]:
    """Three updates, all of which are kept as they are."""
    window, (_, state, values, rollouts, valid) = inputs(3)

    def keep(kept: list[Update[int]], update: Update[int]) -> list[Update[int]]:
        return [*kept, update]

    source = GivenRollouts(rollouts, valid)
    life = Life(state, values, 0)
    return live(window, rule_params, life, source, keep, [], graph=graph, judged=judged)


def test_agents_learn_from_one_rollout_after_the_other() -> None:
    window, (rule_params, state, values, rollouts, _) = inputs(3)
    life, updates = lives(rule_params)
    assert [update.world for update in updates] == [1, 2, 3] and life.world == 3
    for rollout, update in zip(rollouts, updates, strict=True):
        assert_bit_equal(update.before, state)
        assert_bit_equal(update.rollout, rollout)
        state, info = update_agent(window.agent, rule_params, state, rollout)
        assert_bit_equal(update.info.gradient, info.gradient)
        logits = info.predictions.logits
        values = window.meta_value.update(values, rollout, logits, lambda x: x)
    assert_bit_equal(life.agents, state)
    assert_bit_equal(life.values, values)


def test_value_functions_of_agents_that_are_not_judged_stay_as_they_are() -> None:
    _, (rule_params, _, values, _, _) = inputs(3)
    judged, _ = lives(rule_params)
    alone, _ = lives(rule_params, judged=False)
    assert_bit_equal(alone.agents, judged.agents)
    assert_bit_equal(alone.values, values)


@pytest.mark.parametrize("graph", ["none", "each update", "all updates"])
def test_how_far_back_a_graph_reaches(graph: Graph) -> None:
    _, (rule_params, *_) = inputs(3)
    params = {k: p.clone().requires_grad_() for k, p in rule_params.items()}
    life, updates = lives(params, graph)
    weight = params["lifetime_rnn.gates.weight"]  # only told of updates before
    outputs = [tree.leaves(update.info.targets) for update in updates]
    assert [any(x.requires_grad for x in out) for out in outputs] == [graph != "none"] * 3
    assert any(x.requires_grad for x in tree.leaves(life.agents)) == (graph == "all updates")
    assert not any(x.requires_grad for x in tree.leaves(life.values))
    if graph != "none":
        last = torch.stack([x.square().sum() for x in outputs[-1] if x.requires_grad]).sum()
        (slope,) = torch.autograd.grad(last, weight, materialize_grads=True)
        assert bool(slope.any()) == (graph == "all updates")
