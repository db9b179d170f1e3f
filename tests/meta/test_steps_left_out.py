"""Steps that do not count: those in which an environment only resets, and a core's burn-in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
import torch

from discorl import tree
from discorl.agents.agent import adam_clip
from discorl.agents.burn_in import warm_up
from discorl.errors import DiscorlError
from discorl.meta.estimators.imitation import imitation
from discorl.meta.life import Life
from discorl.meta.meta_value import MetaValue, ValueNet, delay_rewards
from discorl.meta.objective import ObjectiveWeights
from discorl.meta.window import MemoryMode, Window
from discorl.nets.torsos import MLPTorso
from discorl.types import Rollout
from tests.agents.test_dead_steps import agent_and_state, rollouts
from tests.agents.test_recurrent import living_state, recurrent_agent, rollout_with_state
from tests.builders import double, random_rule_params, rng, small_disco
from tests.golden.given_rollouts import GivenRollouts
from tests.golden.meta_gradient import through

LARGE = ObjectiveWeights(policy_entropy=0.3, prediction_entropy=0.2, target_mean=0.4, target_kl=0.1)


def close(got: Any, want: Any) -> None:
    for x, y in zip(tree.leaves(got), tree.leaves(want), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-11)


def dead_and_alive() -> tuple[Window, Any, tuple[Rollout, Rollout]]:
    agent, state, rule_params = agent_and_state("disco", mask=False)
    meta_value = MetaValue(ValueNet(MLPTorso(3, (5,)), 5), adam_clip(1e-2))
    start = double((rule_params, state, meta_value.init_state(rng(4))))
    return Window(agent, meta_value, LARGE), start, double(rollouts(agent, state))


@pytest.mark.parametrize("mode", get_args(MemoryMode))
def test_both_ways_of_resetting_say_the_same_of_the_rule(mode: MemoryMode) -> None:
    window, start, (same, then) = dead_and_alive()
    at_once = through(window, (*start, [same, same], same), mode)
    next_step = through(window, (*start, [then, then], then), mode)
    close(next_step.loss, at_once.loss)
    close(next_step.gradient, at_once.gradient)
    close(next_step.life.values, at_once.life.values)
    assert max(float(g.abs().max()) for g in at_once.gradient.values()) > 1e-3


def test_without_the_marks_they_would_say_otherwise() -> None:
    window, start, (same, then) = dead_and_alive()
    at_once = through(window, (*start, [same], same), "plain")
    unmarked = through(window, (*start, [same], replace(then, is_dead=None)), "plain")
    assert float((at_once.loss - unmarked.loss).abs()) > 1e-3


def test_a_warm_start_leaves_dead_steps_out_too() -> None:
    window, start, (same, then) = dead_and_alive()
    rule_params, state, value_state = start
    results = [
        imitation(window, rule_params, Life(state, value_state, 0), GivenRollouts([x, x], x))
        for x in (same, then)
    ]
    close(results[1].loss, results[0].loss)
    close(results[1].gradient, results[0].gradient)


def test_late_rewards_are_refused_where_steps_are_dead() -> None:
    _, _, (_, then) = dead_and_alive()
    with pytest.raises(DiscorlError, match="aligned"):
        delay_rewards(then)


@pytest.mark.parametrize("mode", get_args(MemoryMode))
def test_a_burn_in_is_a_shorter_rollout_that_begins_with_a_warm_core(mode: MemoryMode) -> None:
    rule = small_disco()
    patient, plain = recurrent_agent(rule, burn_in=2), recurrent_agent(rule)
    meta_value = MetaValue(ValueNet(MLPTorso(4, (5,)), 5), adam_clip(1e-2))
    state = living_state(plain)
    # One network is both, so that one warm state is right for both.
    state = replace(state, rule=rule.init_state(state.params))
    start = double((random_rule_params(rule), state, meta_value.init_state(rng(4))))
    training, validation = double((rollout_with_state(8), rollout_with_state(9, seed=1)))
    # The updated agent's warm state is not known beforehand, so nothing of it may be left.
    validation.discounts[2] = 0
    got = through(Window(patient, meta_value, LARGE), (*start, [training], validation), mode)
    cut = [warm_up(plain.net, start[1].params, x, 2) for x in (training, validation)]
    want = through(Window(plain, meta_value, LARGE), (*start, cut[:1], cut[1]), mode)
    close(got.loss, want.loss)
    close(got.gradient, want.gradient)
    close(got.life.values, want.life.values)
    assert max(float(g.abs().max()) for g in want.gradient.values()) > 1e-4


@pytest.mark.parametrize("mode", ["recompute", "mixed"])
def test_memory_modes_agree_for_recurrent_agents_side_by_side(mode: MemoryMode) -> None:
    rule = small_disco()
    agent = recurrent_agent(rule, burn_in=2)
    meta_value = MetaValue(ValueNet(MLPTorso(4, (5,)), 5), adam_clip(1e-2))
    state, value_state = living_state(agent), meta_value.init_state(rng(4))
    one = (random_rule_params(rule), state, value_state)
    one = (*one, [rollout_with_state(8), rollout_with_state(8, seed=2)], rollout_with_state(9))
    many = tree.map(lambda x: torch.stack([x, x]), double(one))
    window = Window(agent, meta_value, LARGE, each=tree.vmap)
    want, got = (through(window, many, m).gradient for m in ("plain", mode))
    close(got, want)
