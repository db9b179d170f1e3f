"""The meta-gradient: its memory modes agree; the golden files say that they are right."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch

from discorl import tree
from discorl.agents.agent import adam_clip
from discorl.errors import DiscorlError
from discorl.meta.meta_value import MetaValue, MetaValueState, ValueNet, delay_rewards
from discorl.meta.objective import ObjectiveWeights
from discorl.meta.window import MemoryMode, Window
from discorl.nets.torsos import MLPTorso
from discorl.rules import DiscoRule
from tests.builders import (
    assert_bit_equal,
    clone,
    double,
    random_rollout,
    random_rule_params,
    rng,
    small_agent,
    small_disco,
    small_disco_with_prior,
)
from tests.golden.meta_gradient import through

MODES = get_args(MemoryMode)
OTHERS = [mode for mode in MODES if mode != "plain"]


def inputs(num_updates: int, rule: DiscoRule | None = None) -> tuple[Window, tuple[Any, ...]]:
    """A window, and what ``meta_gradient`` takes besides."""
    rule = rule or small_disco()
    agent = small_agent(rule)
    meta_value = MetaValue(ValueNet(MLPTorso(4, (5,)), 5), adam_clip(1e-3))
    rollouts = [random_rollout(seed=i) for i in range(num_updates)]
    state, value_state = agent.init_state(rng(3)), meta_value.init_state(rng(4))
    valid = random_rollout(num_steps=9, seed=99)
    window = Window(agent, meta_value, ObjectiveWeights())
    return window, (random_rule_params(rule), state, value_state, rollouts, valid)


@pytest.mark.parametrize("mode", OTHERS)
@pytest.mark.parametrize("num_updates", [1, 2, 5])
def test_memory_modes_agree(num_updates: int, mode: MemoryMode) -> None:
    window, args = inputs(num_updates)
    plain = through(window, args, "plain")
    other = through(window, args, mode)
    assert_bit_equal(plain.life.agents, other.life.agents)
    assert_bit_equal(plain.life.values, other.life.values)
    largest = max(float(g.abs().max()) for g in plain.gradient.values())
    assert largest > 0
    for name, want in plain.gradient.items():
        torch.testing.assert_close(
            other.gradient[name], want, rtol=1e-4, atol=1e-5 * largest, msg=name
        )


@pytest.mark.parametrize("mode", OTHERS)
@pytest.mark.parametrize("rule", [small_disco, small_disco_with_prior])
def test_memory_modes_agree_to_the_last_digits_in_float64(
    rule: Callable[[], DiscoRule], mode: MemoryMode
) -> None:
    window, args = inputs(3, rule())
    plain = through(window, double(args), "plain")
    other = through(window, double(args), mode)
    for name, want in plain.gradient.items():
        torch.testing.assert_close(other.gradient[name], want, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("mode", MODES)
def test_agents_side_by_side_get_the_gradients_they_get_alone(mode: Any) -> None:
    window, first = inputs(2)
    second = (*first[:1], window.agent.init_state(rng(7)), *first[2:3])
    second = (*second, [random_rollout(seed=20 + i) for i in range(2)], random_rollout(9, seed=98))
    both = tree.map(lambda *xs: torch.stack(xs), double(first), double(second))
    together = through(dataclasses.replace(window, each=tree.vmap), both, mode)
    for i, args in enumerate((first, second)):
        alone = through(window, double(args), mode)
        got = (together.gradient, together.life.agents, together.life.values, together.loss)
        want = (alone.gradient, alone.life.agents, alone.life.values, alone.loss)
        for a, b in zip(tree.leaves(tree.index(got, i)), tree.leaves(want), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_inputs_are_not_changed(mode: Any) -> None:
    window, args = inputs(2)
    before = clone(args)
    through(window, args, mode)
    assert_bit_equal(before, args)


def test_mixed_says_which_networks_it_needs() -> None:
    window, args = inputs(1)

    class Other(torch.nn.Module):
        num_actions = 3
        head_sizes = window.agent.net.head_sizes

    other = dataclasses.replace(window.agent, net=Other())
    with pytest.raises(DiscorlError, match=r"predict.*recompute"):
        through(dataclasses.replace(window, agent=other), args, "mixed")


def test_lifetime_lstm_has_no_part_in_a_single_update() -> None:
    window, args = inputs(1)
    gradient = through(window, args, "plain").gradient
    assert bool((gradient["lifetime_rnn.gates.weight"] == 0).all())
    window, args = inputs(2)
    gradient = through(window, args, "plain").gradient
    assert bool((gradient["lifetime_rnn.gates.weight"] != 0).any())


def test_value_function_learns_the_value_of_a_constant_reward() -> None:
    rollout = random_rollout(num_steps=20, batch=8)
    ones = torch.ones_like(rollout.rewards)
    rollout = type(rollout)(
        rollout.observations,
        rollout.actions,
        ones,
        ones,
        torch.zeros_like(rollout.behaviour_logits),
    )
    meta_value = MetaValue(ValueNet(MLPTorso(4, (16,)), 16), adam_clip(3e-3))
    state: MetaValueState = meta_value.init_state(rng())
    logits = rollout.behaviour_logits
    before, _ = meta_value.estimate(state, rollout, logits)
    for _ in range(300):
        state = meta_value.update(state, rollout, logits)
    after, _ = meta_value.estimate(state, rollout, logits)
    assert float(after.td.abs().mean()) < 0.5 * float(before.td.abs().mean())
    assert float(after.value.mean()) > float(before.value.mean()) + 5


def test_delayed_rewards_come_one_step_late() -> None:
    rollout = random_rollout()
    late = delay_rewards(rollout)
    assert torch.equal(late.rewards[1:], rollout.rewards[:-1])
    assert torch.equal(late.discounts[1:], rollout.discounts[:-1])
    assert torch.equal(late.actions, rollout.actions)
