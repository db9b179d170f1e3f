"""A window that slides: the gradient goes back through updates of earlier meta-steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from discorl import tree
from discorl.errors import DiscorlError
from discorl.meta.life import KeptUpdate
from discorl.meta.meta_step import live_window
from discorl.meta.population import init_group
from discorl.meta.window import MemoryMode
from tests.builders import assert_bit_equal, clone, double, rng
from tests.golden.given_rollouts import GivenRollouts, meta_gradient
from tests.golden.meta_gradient import through
from tests.meta.population import tiny_config, tiny_groups
from tests.meta.test_estimators import inputs


def side_by_side(*trees: Any) -> Any:
    return tree.map(lambda *xs: torch.stack(xs), *trees)


@pytest.mark.parametrize("mode", ["recompute", "mixed"])
def test_goes_back_through_an_agents_own_updates_and_no_further(mode: MemoryMode) -> None:
    """Two agents; the earlier update is of the first one's present life alone."""
    window, args = inputs(2)
    window = replace(window, each=tree.vmap)
    rule_params, state, value_state, (first, second), valid = double(side_by_side(args, args))
    source = GivenRollouts([first], valid)
    args = (window, rule_params, state, value_state, source, mode)
    assert meta_gradient(*args).earlier == (), "nothing is kept that was not asked for"
    before = KeptUpdate(rule_params, state, first, own=torch.tensor([False, False]))
    one = meta_gradient(*args, earlier=(before,))
    [kept] = one.earlier
    kept = replace(kept, own=torch.tensor([True, False]))
    source = GivenRollouts([second], valid)
    slid = meta_gradient(
        window, rule_params, one.life.agents, one.life.values, source, mode, earlier=(kept,)
    )
    start = (rule_params, state, value_state)
    both = through(window, (*start, [first, second], valid), "plain")
    rest = (rule_params, one.life.agents, one.life.values)
    last = through(window, (*rest, [second], valid), "plain")
    for name, got in slid.gradient.items():
        torch.testing.assert_close(got[0], both.gradient[name][0], rtol=1e-9, atol=1e-13)
        torch.testing.assert_close(got[1], last.gradient[name][1], rtol=1e-9, atol=1e-13)
    assert_bit_equal(slid.life.agents, both.life.agents)
    weight = "lifetime_rnn.gates.weight"  # has no part in a single update
    assert bool((slid.gradient[weight][0] != 0).any())
    assert bool((slid.gradient[weight][1] == 0).all())


@pytest.mark.parametrize("mode", ["recompute", "mixed"])
def test_agents_live_on_by_the_stride(mode: MemoryMode) -> None:
    config = tiny_config(num_updates=3, stride=1, memory=mode, replay_capacity=6, num_replayed=2)
    [group, _], params = tiny_groups(config)
    state = init_group(group, rng())
    structure = [(x.shape, x.dtype) for x in tree.leaves(state)]
    own, before = [], state
    for step in range(4):
        before = clone(state)
        result = live_window(group, params, state, rng(step))
        assert_bit_equal(replace(before, replay=None), replace(state, replay=None))
        state = result.state
        assert state.age.tolist() == [step + 1] * 2
        own.append([update.own.tolist() for update in state.earlier])
        assert tree.is_finite(result.gradient)
        assert [(x.shape, x.dtype) for x in tree.leaves(state)] == structure
    assert own[0] == [[False, False], [True, True]]
    assert own[1] == own[3] == [[True, True], [True, True]]
    assert_bit_equal(state.earlier[-1].state, before.agents)


def test_a_newborn_has_no_earlier_updates() -> None:
    config = tiny_config(num_updates=3, stride=1, memory="recompute")
    [group, _], params = tiny_groups(config)
    state = init_group(group, rng())
    for step in range(2):
        state = live_window(group, params, state, rng(step)).state
    state = replace(state, budget=torch.tensor([100, 3]))
    result = live_window(group, params, state, rng(5))
    assert result.num_born == 1
    own = [update.own.tolist() for update in result.state.earlier]
    assert own == [[True, False], [True, False]]
    # A single update of its own, which is then judged: the lifetime LSTM has no part in it yet.
    gradient = live_window(group, params, result.state, rng(6)).gradient
    weight = gradient["lifetime_rnn.gates.weight"]
    assert bool((weight[0] != 0).any()) and bool((weight[1] == 0).all())


def test_an_agent_that_blew_up_does_not_spoil_its_next_life() -> None:
    config = tiny_config(num_updates=3, stride=1, memory="recompute")
    [group, _], params = tiny_groups(config)
    state = live_window(group, params, init_group(group, rng()), rng(1)).state
    broken = {k: torch.cat([p[:1], p[1:] * float("nan")]) for k, p in state.agents.params.items()}
    state = replace(state, agents=replace(state.agents, params=broken))
    state = live_window(group, params, state, rng(2)).state
    result = live_window(group, params, state, rng(3))
    assert result.num_born == 0
    assert tree.is_finite(result.gradient)


def test_imitated_updates_are_not_gone_back_through() -> None:
    config = tiny_config(num_updates=3, stride=1, memory="recompute")
    [group, _], params = tiny_groups(config)
    state = live_window(group, params, init_group(group, rng()), rng(1)).state
    state = live_window(group, params, state, rng(2), imitate=True).state
    assert state.earlier and not any(x.own.any() for x in state.earlier)
    assert state.age.tolist() == [2, 2]


def test_a_whole_window_is_no_slide() -> None:
    [group, _], params = tiny_groups(tiny_config(memory="recompute"))
    [other, _], _ = tiny_groups(tiny_config(memory="recompute", stride=2))
    state = init_group(group, rng())
    assert state.earlier == ()
    one, two = (live_window(g, params, state, rng(1)) for g in (group, other))
    assert_bit_equal(one.gradient, two.gradient)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"stride": 0, "memory": "recompute"}, "stride"),
        ({"stride": 3, "memory": "recompute"}, "stride"),
        ({"stride": 1, "memory": "plain"}, "recompute"),
    ],
)
def test_strides_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DiscorlError, match=message):
        tiny_config(num_updates=2, **changes)


def test_plain_refuses_earlier_updates() -> None:
    window, (rule_params, state, value_state, training, valid) = inputs(1)
    source = GivenRollouts(training, valid)
    kept = KeptUpdate(rule_params, state, training[0], torch.tensor(True))
    with pytest.raises(DiscorlError, match="recompute"):
        meta_gradient(window, rule_params, state, value_state, source, "plain", earlier=(kept,))
