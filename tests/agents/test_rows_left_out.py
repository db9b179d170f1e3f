"""Steps that the mask leaves out of the loss leave the backward pass, too."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from discorl.agents import update
from discorl.agents.agent import Agent, adam_clip, agent_net, mlp_agent_net
from discorl.agents.update import update_agent
from discorl.nets.net_config import NetConfig
from discorl.ops import native
from discorl.ops.moments import alone
from discorl.rules import CMPO, ActorCritic
from discorl.types import EnvSpec
from tests.builders import (
    RULES,
    assert_bit_equal,
    random_rollout,
    random_rule_params,
    rng,
    small_agent,
    small_disco,
)
from tests.compiler import needs_compiler

WITHOUT_BINS = {"plain value": ActorCritic(num_bins=None), "plain values": CMPO(num_bins=None)}
"""Their value heads have a single column."""


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the products of chosen rows are used."""
    native.build()
    counted: Counter[str] = Counter()

    def count(name: str) -> None:
        kernel = getattr(torch.ops.discorl, name)

        def noted(*args: object) -> object:
            counted[name] += 1
            return kernel(*args)

        monkeypatch.setattr(torch.ops.discorl, name, noted)

    for name in ("mm_of_rows", "mm_over_rows"):
        count(name)
    return counted


@needs_compiler
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(
    "name", ["disco", "cmpo", "actor-critic", "policy-gradient", "plain value", "plain values"]
)
def test_gradients_are_the_same(
    name: str, bf16: bool, products: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = WITHOUT_BINS[name] if name in WITHOUT_BINS else RULES[name]()
    rollout = random_rollout()
    spec = EnvSpec(tuple(rollout.observations.shape[2:]), rollout.behaviour_logits.shape[-1])
    net = mlp_agent_net(spec, rule, (128, 128), lstm_size=64, head_hidden=(70,))
    agent = Agent(net, rule, adam_clip(0.01), native=True, bf16=bf16)
    args = random_rule_params(rule), agent.init_state(rng()), rollout
    assert bool((rollout.discounts[:-1] == 0).any()), "there are episode starts"
    chosen = update_agent(agent, *args)[1]
    assert products["mm_of_rows"] and products["mm_over_rows"]
    products.clear()
    monkeypatch.setattr(update, "_rows_that_count", lambda *_: None)
    everything = update_agent(agent, *args)[1]
    assert not products
    for name, gradient in everything.gradient.items():
        torch.testing.assert_close(chosen.gradient[name], gradient, rtol=1e-4, atol=1e-6)
    assert_bit_equal(chosen.losses, everything.losses)


@pytest.mark.parametrize("name", RULES)
def test_no_rule_learns_from_other_steps(name: str) -> None:
    """Rules that say so: a step that does not count, or the last one, has no gradient at all."""
    rule: Any = RULES[name]()
    if not getattr(rule, "is_stepwise", False):
        pytest.skip("it does not say so")
    agent, rollout = small_agent(replace(rule, mask_episode_starts=True)), random_rollout()
    args = random_rule_params(rule), agent.init_state(rng())
    params = {name: x.clone().requires_grad_() for name, x in args[1].params.items()}
    how = False, alone, update.one_agent
    unroll, targets, _ = update.unroll_and_targets(agent, *args, params, rollout, *how)
    _, _, gradients = update.loss_and_output_grads(
        agent, unroll.predictions, targets, rollout, *how
    )
    left_out = update.loss_mask(rollout, mask_episode_starts=True) == 0
    assert bool(left_out.any()) and not bool(left_out.all())
    left_out = torch.cat([left_out, torch.ones_like(left_out[:1])])  # the last step, too
    for gradient in gradients:
        of_steps = gradient.flatten(2).abs().sum(-1)  # [T, B], or less the last step
        assert bool(of_steps.any()) and not bool(of_steps[left_out[: len(of_steps)]].any())


@needs_compiler
def test_not_where_steps_are_mixed(products: Counter[str]) -> None:
    rule, rollout = small_disco(), random_rollout()
    spec = EnvSpec(tuple(rollout.observations.shape[2:]), rollout.behaviour_logits.shape[-1])
    with_core = agent_net(spec, rule, NetConfig((8,), 8, (8,), core_lstm=8))
    other_torso = agent_net(spec, rule, NetConfig((8,), 8, (8,)), torso=Mixing(spec))
    for net in (with_core, other_torso):
        agent = Agent(net, rule, adam_clip(0.01), native=True)
        update_agent(agent, random_rule_params(rule), agent.init_state(rng()), rollout)
    assert not products


class Mixing(torch.nn.Module):
    """A torso whose rows depend on each other."""

    embedding_size = 8

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(torch.Size(spec.observation_shape).numel(), 8)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        x = self.layer(observation.flatten(1))
        return x + x.mean(0)


@needs_compiler
@pytest.mark.parametrize("round", [False, True])
@pytest.mark.parametrize("rows", [[], [0], [1, 2, 5, 199], list(range(200))], ids=len)
@pytest.mark.parametrize(
    ("depth", "width", "other"), [(70, 33, 40), (1, 33, 40), (70, 1, 1), (1, 1, 1)]
)
def test_products_of_chosen_rows(
    rows: list[int], round: bool, depth: int, width: int, other: int
) -> None:
    """A single column could be taken for a row."""
    native.build()
    a, b = torch.randn(200, depth, generator=rng()), torch.randn(depth, width, generator=rng(1))
    x, index = torch.randn(200, other, generator=rng(2)), torch.tensor(rows, dtype=torch.long)
    got = torch.ops.discorl.mm_of_rows(a, b, index, round)
    expected = torch.zeros(200, width)
    expected[index] = torch.ops.discorl.mm(a, b, round)[index]
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    got = torch.ops.discorl.mm_over_rows(a, x, index, round)
    rounded = (t[index].bfloat16().float() if round else t[index] for t in (a, x))
    expected = next(rounded).T @ next(rounded)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-4)


@needs_compiler
def test_rows_that_are_not_there_are_refused() -> None:
    native.build()
    a, b = torch.ones(4, 5), torch.ones(5, 6)
    for rows in ([4], [-1]):
        with pytest.raises((RuntimeError, IndexError)):
            torch.ops.discorl.mm_of_rows(a, b, torch.tensor(rows))
    with pytest.raises((RuntimeError, IndexError)):
        torch.ops.discorl.mm_over_rows(a, a, torch.tensor([4]))
