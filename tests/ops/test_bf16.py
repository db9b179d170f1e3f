"""Products of factors that are rounded to bfloat16: exact but for that, and only if large."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from discorl import tree
from discorl.agents.acting import act, begin
from discorl.agents.agent import Agent, adam_clip, mlp_agent_net
from discorl.agents.network import with_params
from discorl.agents.update import update_agent
from discorl.envs.tasks.catch import Catch
from discorl.ops import lstm, native
from discorl.ops.affine import linear
from discorl.ops.moments import update_moments
from discorl.ops.softmax import softmax_linear
from discorl.rules.store import load_rule
from discorl.types import EnvSpec, LSTMState
from tests.builders import assert_bit_equal, random_rollout, random_rule_params, rng, small_disco
from tests.compiler import needs_compiler
from tests.golden import learner
from tests.golden.files import Arrays, load
from tests.golden.replay import replay
from tests.golden.tolerances import MADE_OF_VALUES, largest, quantity_of
from tests.golden_files import LEARNER_STEPS, each

UNIT = 2.0**-8
"""The largest relative error of rounding to bfloat16, which keeps 8 binary digits."""
SIZES = [(1, 1, 1), (7, 13, 5), (9, 64, 3), (100, 33, 17), (97, 641, 65), (192, 1300, 130)]
"""Rows, terms and columns: with and without remainders of tiles, panels and blocks."""


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=rng(seed))


def rounded(x: Tensor) -> Tensor:
    return x.bfloat16().double()


def assert_sums_are_single(got: Tensor, a: Tensor, b: Tensor) -> None:
    """No farther from the exact sum of rounded terms than single precision can be."""
    a, b = rounded(a), rounded(b)
    limit = a.shape[1] * 2.0**-23 * (a.abs() @ b.abs()) + 1e-30
    assert float(((got - a @ b).abs() / limit).max()) < 1


@needs_compiler
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_only_the_factors_are_rounded(sizes: tuple[int, int, int]) -> None:
    native.build()
    rows, terms, columns = sizes
    for a in (normal(rows, terms), normal(terms, rows).T, normal(rows, 2 * terms)[:, ::2]):
        for b in (normal(terms, columns, seed=1), normal(columns, terms, seed=1).T):
            assert_sums_are_single(torch.ops.discorl.mm(a, b, True), a, b)


@needs_compiler
@pytest.mark.parametrize("rows", [1, 2, 8, 9, 40])
def test_few_rows_are_like_many(rows: int) -> None:
    native.build()
    x, weight, bias = normal(rows, 70), normal(33, 70, seed=1), normal(33, seed=2)
    got = torch.ops.discorl.linear(x, weight, bias, True)
    assert_sums_are_single(got.double() - bias.double(), x, weight.T)
    alone = torch.cat([torch.ops.discorl.linear(row, weight, bias, True) for row in x.split(1)])
    torch.testing.assert_close(got, alone, rtol=1e-5, atol=1e-5)


@needs_compiler
@pytest.mark.parametrize("rows", [1, 2, 7, 24, 65])
@pytest.mark.parametrize("bf16", [False, True])
def test_weights_that_are_packed_once(rows: int, bf16: bool) -> None:
    native.build()
    if not torch.ops.discorl.can_pack(bf16):
        pytest.skip("this processor has no use for it")
    many = native.LARGE if bf16 else native.NEVER
    x, sizes = torch.randn(rows, 70, generator=rng(0)), (70, 100, 9, 65)
    layers = [
        (torch.randn(n, m, generator=rng(m)), torch.randn(n, generator=rng(n)))
        for m, n in itertools.pairwise(sizes)
    ]
    exact = x.double()
    for i, (weight, bias) in enumerate(layers):
        a, b = exact.relu() if i else exact, weight
        if bf16 and weight.shape[1] >= native.LARGE:
            a, b = a.float().bfloat16().double(), b.bfloat16()
        exact = a @ b.double().T + bias.double()
    packed = [
        torch.ops.discorl.pack_weight(w, bf16 and w.shape[1] >= native.LARGE) for w, _ in layers
    ]
    out = torch.ops.discorl.packed_mlp(x, packed, [bias for _, bias in layers], many)
    # A sum on the edge between two numbers of bfloat16 may be rounded to either.
    assert (out - exact).abs().max() < (2**-8 if bf16 else 1e-5) * exact.abs().max()


@needs_compiler
@pytest.mark.disco103
@pytest.mark.parametrize("bf16", [False, True])
def test_an_agent_acts_with_its_present_weights(bf16: bool) -> None:
    """Weights are packed for a rollout; the next one has others."""
    native.build()
    if not torch.ops.discorl.can_pack(bf16):
        pytest.skip("this processor has no use for it")
    loaded = load_rule("disco103")
    env = Catch(3, 8, 8)
    net = mlp_agent_net(env.spec, loaded.rule)
    agent = Agent(net, loaded.rule, adam_clip(0.01), native=True, bf16=bf16)
    for seed in (0, 1):
        params = agent.init_state(rng(seed)).params
        with agent.acting():
            rollout, _ = act(net, params, env, begin(net, env, rng(0)), 9)
        with native.kernels(True, bf16), torch.inference_mode():
            rows = rollout.observations.flatten(0, 1)  # as the learner does it
            logits = with_params(net, params, lambda net, rows=rows: net(rows).logits)
        assert (rollout.behaviour_logits.flatten(0, 1) - logits).abs().max() < 1e-5
        assert logits.abs().max() > 1e-3


@needs_compiler
def test_what_is_not_finite_stays_so() -> None:
    native.build()
    a = normal(40, 70)
    a[3, 5], a[4, 5] = torch.nan, torch.inf
    got = torch.ops.discorl.mm(a, normal(70, 20, seed=1), True)
    assert got[3].isnan().all() and not got[4].isfinite().any()
    assert got[5:].isfinite().all()
    for shape in ((0, 70), (40, 0)):
        got = torch.ops.discorl.mm(torch.ones(shape), torch.ones(shape[1], 3), True)
        assert_bit_equal(got, torch.zeros(shape[0], 3))


@needs_compiler
def test_threads_do_not_change_a_bit() -> None:
    native.build()
    a, b = normal(500, 700), normal(700, 300, seed=1)
    one = [torch.ops.discorl.mm(a, b, True), torch.ops.discorl.mm(a.T, a, True)]
    torch.set_num_threads(2)
    try:
        two = [torch.ops.discorl.mm(a, b, True), torch.ops.discorl.mm(a.T, a, True)]
    finally:
        torch.set_num_threads(1)
    assert_bit_equal(two, one)


@needs_compiler
@pytest.mark.parametrize("shape", [(300, 70), (3, 100, 70)], ids=str)
def test_linear_by_kernel_and_by_torch(shape: tuple[int, ...]) -> None:
    native.build()
    x = normal(*shape).requires_grad_()
    weight, bias = normal(20, 70, seed=1).requires_grad_(), normal(20, seed=2).requires_grad_()
    slope = normal(*shape[:-1], 20, seed=3)

    def output_and_gradients() -> list[Tensor]:
        y = linear(x, weight, bias)
        return [y.detach(), *torch.autograd.grad((y * slope).sum(), [x, weight, bias])]

    exact = output_and_gradients()
    with native.kernels(True, bf16=True):
        by_kernel = output_and_gradients()
    with native.kernels(False, bf16=True):
        by_torch = output_and_gradients()
    torch.testing.assert_close(by_kernel, by_torch, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(by_kernel[3], exact[3], rtol=1e-5, atol=1e-4)
    for a, b in zip(by_kernel[:3], exact[:3], strict=True):
        assert 1e-4 < float((a - b).abs().max() / b.abs().max()) < 2 * UNIT


@needs_compiler
@pytest.mark.parametrize("by_kernel", [True, False])
def test_expectations_and_small_products_are_not_rounded(by_kernel: bool) -> None:
    native.build()
    logits, bins = normal(300, 601), torch.linspace(-300, 300, 601).unsqueeze(1)
    x, weight = normal(300, native.LARGE - 1), normal(9, native.LARGE - 1, seed=1)

    def both(bf16: bool) -> list[Tensor]:
        with torch.no_grad(), native.kernels(by_kernel, bf16=bf16):
            return [softmax_linear(logits, [], bins), linear(x, weight)]

    assert_bit_equal(both(True), both(False))


@needs_compiler
@pytest.mark.parametrize("by_kernel", [True, False])
def test_embeddings_of_logits_are(by_kernel: bool) -> None:
    native.build()
    x, layers = normal(300, 64), [(normal(96, 64, seed=1) / 8, normal(96, seed=2))]
    weight, bias = normal(96, 5, seed=3), normal(5, seed=4)

    def embeddings(bf16: bool) -> Tensor:
        with torch.no_grad(), native.kernels(by_kernel, bf16=bf16):
            return softmax_linear(x, layers, weight, bias)

    difference = (embeddings(True) - embeddings(False)).abs().max()
    assert 0 < float(difference) < 2 * 2 * UNIT * float(weight.abs().max())


CHAIN = 5
"""Rounded products that one number passes through at most: torso, action model, its heads, and the
rule's embedding and targets."""
LIMIT = CHAIN * 2 * UNIT
"""Of the golden numbers in bf16. Rounding both factors moves each term of a sum by at most 2 UNIT
of its size, and a number is off by as much for each product that it has passed through."""


def size_of_parts(name: str, arrays: Arrays) -> float:
    """The largest entry of an array, or of what it is a mean or a difference of."""
    size = largest(arrays[name]) + (1 if name.startswith("log_") else 0)
    if name.rpartition("/")[2] in MADE_OF_VALUES | {"moment1"}:
        targets = ("/q_target", "/value_target")
        size = max(size, largest(*(x for key, x in arrays.items() if key.endswith(targets))))
    return size


@needs_compiler
@pytest.mark.parametrize("path", each(LEARNER_STEPS))
@pytest.mark.parametrize("by_kernel", [True, False])
def test_golden_numbers(path: Path, by_kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the reference, within what the rounding of factors can do; all products are large
    here, because the networks of the files are not."""
    monkeypatch.setattr(learner, "Agent", partial(Agent, native=by_kernel, bf16=True))
    monkeypatch.setattr(native, "LARGE", 2)
    report = replay(path)
    assert report.failures, "rounding shows"
    limits = {q: max(limit, LIMIT) for q, (_, limit) in report.worst.items()}
    for array, x in (arrays := load(path)).items():
        quantity = quantity_of(array)
        relative = LIMIT * size_of_parts(array, arrays) / max(largest(x), 1e-12)
        limits[quantity] = max(limits.get(quantity, 0.0), relative)
    assert {q: e for q, (e, _) in report.worst.items() if e > limits[q]} == {}


@needs_compiler
@pytest.mark.parametrize("by_kernel", [True, False])
def test_recurrences_are_not_rounded(by_kernel: bool) -> None:
    native.build()
    gates, reset = normal(5, 8, 4 * 64), torch.rand(5, 8, generator=rng()) < 0.3
    weight, cell = normal(64, 4 * 64, seed=1), normal(8, 64, seed=2)
    of_action, actions = normal(70, 4 * 64, seed=3), torch.arange(8)

    def everything(bf16: bool) -> object:
        with torch.no_grad(), native.kernels(by_kernel, bf16=bf16):
            return (
                lstm.unroll(gates, weight, reset, LSTMState(cell, cell)),
                lstm.unroll_backward(gates, weight, reset),
                lstm.after_action(gates[0], cell, of_action, actions),
                lstm.after_every_action(gates[0], cell, of_action),
            )

    assert_bit_equal(everything(True), everything(False))


@needs_compiler
@pytest.mark.parametrize("by_kernel", [True, False])
def test_what_follows_the_products_is_single(by_kernel: bool) -> None:
    """Moments, target network and optimiser: float32 gives the same bits from the same inputs."""
    rule, rollout = small_disco(), random_rollout()
    spec = EnvSpec(tuple(rollout.observations.shape[2:]), rollout.behaviour_logits.shape[-1])
    net = mlp_agent_net(spec, rule, (128, 128), lstm_size=64, head_hidden=(70,))
    agent = Agent(net, rule, adam_clip(0.01), native=by_kernel, bf16=True)
    old = agent.init_state(rng())
    assert old.rule.target_params is not None
    aside = {name: x + 1 for name, x in old.rule.target_params.items()}
    old = replace(old, rule=replace(old.rule, target_params=aside))
    new, info = update_agent(agent, random_rule_params(rule), old, rollout)
    exact = update_agent(replace(agent, bf16=False), random_rule_params(rule), old, rollout)[1]
    assert not torch.equal(info.predictions.logits, exact.predictions.logits), "products are not"
    values = info.targets.values
    moments = update_moments(old.rule.advantage_moments, values.advantage)
    assert_bit_equal(new.rule.advantage_moments, moments)
    target = tree.lerp(aside, old.params, rule.settings.target_rate)
    assert_bit_equal(new.rule.target_params, target)
    updates, optimiser = agent.optimiser.update(info.gradient, old.optimiser, old.params)
    assert_bit_equal(new.params, {name: x + updates[name] for name, x in old.params.items()})
    assert_bit_equal(new.optimiser, optimiser)
