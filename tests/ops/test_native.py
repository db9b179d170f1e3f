"""The kernels in C++ against the torch operations that they stand in for."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from discorl import tree
from discorl.agents.agent import Agent
from discorl.agents.update import update_agent
from discorl.nets.action_model import ActionModel
from discorl.nets.lstm import LSTM
from discorl.ops import native
from discorl.ops.affine import linear
from discorl.ops.losses import kl_loss, two_hot_loss
from discorl.ops.softmax import softmax_linear
from tests.agents.test_action_masks import KEPT, NUM_ACTIONS, masked
from tests.builders import (
    assert_bit_equal,
    random_rollout,
    random_rule_params,
    rng,
    small_agent,
    small_disco,
)
from tests.compiler import needs_compiler
from tests.golden import learner
from tests.golden.replay import replay
from tests.golden_files import LEARNER_STEPS, each

OF_ROWS = {"softmax_linear", "lstm_after_actions", "kl_rows", "cross_entropy_rows"}
OF_GRADIENTS = {"mm", "mm_of_rows", "mm_over_rows", "lstm_after_action_backward"}
KERNELS = OF_ROWS | OF_GRADIENTS | {"linear", "lstm_unroll_backward"}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The kernels, built; counts how often each is called."""
    native.build()
    counted: Counter[str] = Counter()

    def count(name: str) -> None:
        kernel = getattr(torch.ops.discorl, name)

        def noted(*args: object) -> object:
            counted[name] += 1
            return kernel(*args)

        monkeypatch.setattr(torch.ops.discorl, name, noted)

    for name in KERNELS:
        count(name)
    return counted


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=rng(seed))


@needs_compiler
@pytest.mark.parametrize("rows", [0, 1, 255, 256, 257, 700])
@pytest.mark.parametrize("sizes", [(9,), (5, 9), (5, 6, 9)], ids=str)
@pytest.mark.parametrize("outputs", [1, 3])
def test_softmax_linear(
    rows: int, sizes: tuple[int, ...], outputs: int, calls: Counter[str]
) -> None:
    x = normal(rows, sizes[0])
    layers = [(normal(n, m, seed=n), normal(n, seed=m)) for m, n in itertools.pairwise(sizes)]
    weight, bias = normal(sizes[-1], outputs, seed=3), normal(outputs, seed=4)
    for added in (bias, None):
        with torch.no_grad(), native.kernels(True):
            got = softmax_linear(x, layers, weight, added)
        torch.testing.assert_close(got, softmax_linear(x, layers, weight, added))
    assert calls == {"softmax_linear": 2}


@needs_compiler
def test_rows_and_factors_may_lie_apart_in_memory(calls: Counter[str]) -> None:
    x, weight, bias = normal(9, 300).T, normal(3, 9).T, normal(6)[::2]
    layers = [(normal(9, 9).T, normal(18)[::2])]
    model = ActionModel(5, 3, {"q": 3}, lstm_size=4, head_hidden=(4,))
    cell, gates, actions = normal(4, 7).T, normal(16, 7).T, torch.randint(3, (2, 7)).T

    def everything() -> list[Tensor]:
        with torch.no_grad():
            return [
                softmax_linear(x, layers, weight, bias),
                model.transition_some(cell, gates, actions),
                kl_loss(normal(9, 40, seed=1).T, x[:40]),
                two_hot_loss(x[:40], normal(80)[::2], 1.0),
            ]

    with native.kernels(True):
        got = everything()
    assert set(calls) == OF_ROWS
    torch.testing.assert_close(got, everything())


@needs_compiler
@pytest.mark.parametrize("rows", [0, 1, 300])
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear_and_its_gradients(rows: int, with_bias: bool, calls: Counter[str]) -> None:
    x = normal(rows, 7).requires_grad_()
    weight = normal(7, 33, seed=1).T.requires_grad_()  # which does not lie row by row
    bias = normal(33, seed=2).requires_grad_() if with_bias else None
    inputs = [x, weight, *([bias] if bias is not None else [])]

    def output_and_gradients() -> list[Tensor]:
        y = linear(x, weight, bias)
        return [y, *torch.autograd.grad(y.sin().sum(), inputs)]

    expected = output_and_gradients()
    assert not calls
    with native.kernels(True):
        got = output_and_gradients()
        assert calls == {"linear": 1, "mm": 2}
        linear(x.detach(), weight, bias).sum().backward()
    assert calls == {"linear": 2, "mm": 3}, "nobody wants the gradient of the first layer's input"
    torch.testing.assert_close(got, expected)


@needs_compiler
@pytest.mark.parametrize("transposed", [False, True])
def test_products_are_as_exact_as_single_precision_allows(transposed: bool) -> None:
    native.build()
    a, b = normal(200, 600), normal(600, 130, seed=1)
    if transposed:
        a, b = a.T.contiguous().T, b.T.contiguous().T
    exact = a.double() @ b.double()
    error = (torch.ops.discorl.mm(a, b) - exact).abs().max()
    assert float(error) < 1e-4  # sums of 600 terms of size 1: MKL's and oneDNN's are 2e-5 to 5e-5


@needs_compiler
def test_inference_mode(calls: Counter[str]) -> None:
    with torch.inference_mode(), native.kernels(True):
        got = softmax_linear(normal(300, 9), [(normal(8, 9), normal(8))], normal(8, 2))
        assert got.shape == linear(normal(300, 9), normal(2, 9)).shape
    assert calls == {"softmax_linear": 1, "linear": 1}


@needs_compiler
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4])
def test_softmax_is_as_exact_as_single_precision_allows(scale: float, calls: Counter[str]) -> None:
    logits, identity = normal(500, 601, scale=scale), torch.eye(601)
    with torch.no_grad(), native.kernels(True):
        got = softmax_linear(logits, [], identity)
    exact = torch.softmax(logits.double(), -1)
    error = (got - exact).abs() / exact.clamp(min=1e-30)
    assert float(error[exact > 1e-30].max()) < 5e-6  # the exponent is rounded too: |x| * 6e-8
    assert calls == {"softmax_linear": 1}


@needs_compiler
def test_infinity_and_nan_are_as_in_torch(calls: Counter[str]) -> None:
    logits = normal(4, 7)
    logits[0, 2] = -torch.inf
    logits[1, 2] = torch.inf
    logits[2, 2] = torch.nan
    with torch.no_grad(), native.kernels(True):
        got = softmax_linear(logits, [], torch.eye(7))
    assert calls == {"softmax_linear": 1}
    assert float(got[0, 2]) == 0
    assert got[1].isnan().any() and got[2].isnan().any()
    torch.testing.assert_close(got[[0, 3]], torch.softmax(logits[[0, 3]], -1))


@needs_compiler
@pytest.mark.parametrize("num_actions", [1, 2, 3, 18])
def test_lstm_after_actions(num_actions: int, calls: Counter[str]) -> None:
    model = ActionModel(5, num_actions, {"q": 3}, lstm_size=19, head_hidden=(4,))
    cell, gates = normal(40, 19, scale=3.0), normal(40, 76, scale=4.0)
    actions = torch.randint(num_actions, (40, 2), generator=rng())

    def hidden() -> tuple[Tensor, Tensor]:
        return model.transition_some(cell, gates, actions), model.transition_all(cell, gates)

    with torch.no_grad():
        expected = hidden()
        with native.kernels(True):
            got = hidden()
    torch.testing.assert_close(got, expected)
    assert calls == {"lstm_after_actions": 2}


@needs_compiler
@pytest.mark.parametrize("num_actions", [1, 3])
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_gradients_after_an_action(num_actions: int, scale: float, calls: Counter[str]) -> None:
    model = ActionModel(5, num_actions, {"q": 3}, lstm_size=19, head_hidden=(4,))
    cell = normal(40, 19, scale=scale).requires_grad_()
    gates = normal(40, 76, seed=1, scale=scale).requires_grad_()
    actions = torch.randint(num_actions, (40,), generator=rng())
    inputs = [cell, gates, model.lstm.gates.weight, model.lstm.gates.bias]

    def hidden_and_gradients() -> list[Tensor]:
        hidden = model.transition(cell, gates, actions)
        return [hidden, *torch.autograd.grad(hidden.square().sum(), inputs)]

    expected = hidden_and_gradients()
    assert not calls
    with native.kernels(True):
        got = hidden_and_gradients()
    assert calls == {"lstm_after_actions": 1, "lstm_after_action_backward": 1, "mm": 1}
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


@needs_compiler
@pytest.mark.parametrize("batch", [1, 32, 33, 70])
@pytest.mark.parametrize("reset_rate", [0.0, 0.3, 1.0])
def test_lstm_backward_in_time(batch: int, reset_rate: float, calls: Counter[str]) -> None:
    lstm = LSTM(5, 19)
    x, reset = normal(7, batch, 5), torch.rand(7, batch, generator=rng()) < reset_rate
    with torch.no_grad():
        expected = lstm.unroll_backward(x, reset)
        with native.kernels(True):
            got = lstm.unroll_backward(x, reset)
            torch.set_num_threads(2)
            try:
                by_two = lstm.unroll_backward(x, reset)
            finally:
                torch.set_num_threads(1)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(by_two, expected)
    assert calls == {"linear": 2, "lstm_unroll_backward": 2}


@needs_compiler
def test_lstm_backward_in_time_compiled() -> None:
    native.build()
    lstm = LSTM(5, 19)
    x, reset = normal(7, 40, 5), torch.rand(7, 40, generator=rng()) < 0.3
    graphs: list[str] = []

    def note(graph: torch.fx.GraphModule, inputs: object) -> object:
        graphs.append(graph.code)
        return graph.forward

    with torch.no_grad():
        unroll_backward = torch.compile(lstm.unroll_backward, backend=note, fullgraph=True)
        plain = unroll_backward(x, reset)
        with native.kernels(True):
            got = unroll_backward(x, reset)
        torch.testing.assert_close(got, plain)
    assert ["lstm_unroll_backward" in graph for graph in graphs] == [False, True]


@needs_compiler
@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_losses_and_their_gradients(rows: int, scale: float, calls: Counter[str]) -> None:
    logits = normal(rows, 2, 21, scale=scale).requires_grad_()
    target, x = normal(rows, 2, 21, seed=1, scale=scale), normal(rows, 2, seed=2, scale=9.0)

    def losses_and_gradients() -> list[Tensor]:
        losses = kl_loss(target, logits), two_hot_loss(logits, x, 10.0)
        grads = [torch.autograd.grad(loss.square().sum(), logits)[0] for loss in losses]
        return [*losses, *grads]

    expected = losses_and_gradients()
    assert not calls
    with native.kernels(True):
        got = losses_and_gradients()
    assert calls == {"kl_rows": 1, "cross_entropy_rows": 1}
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * max(1.0, scale))


@needs_compiler
def test_threads_do_not_change_a_bit(calls: Counter[str]) -> None:
    x, layers = normal(1500, 8), [(normal(30, 8), normal(30))]
    model = ActionModel(5, 3, {"q": 3}, lstm_size=16, head_hidden=(4,))

    def everything() -> list[Tensor]:
        with torch.no_grad(), native.kernels(True):
            return [
                softmax_linear(x, layers, normal(30, 4)),
                model.transition_all(normal(1500, 16), normal(1500, 64)),
                kl_loss(normal(1500, 30), normal(1500, 30, seed=1)),
                two_hot_loss(normal(1500, 30), normal(1500), 2.0),
            ]

    one = everything()
    assert set(calls) == OF_ROWS
    torch.set_num_threads(2)
    try:
        assert_bit_equal(everything(), one)
    finally:
        torch.set_num_threads(1)


def test_used_only_where_they_apply() -> None:
    def refuse(used: bool) -> None:
        assert not used

    x = normal(3)
    assert not native.apply_to(x) and not native.in_use(x)
    with native.kernels(True):
        assert native.in_use(x) and not native.in_use(x.double())
        assert not native.apply_to(x), "a gradient may be wanted"
        with torch.no_grad():
            assert native.apply_to(x)
            assert not native.apply_to(x, x.double())
            assert not native.apply_to(x.to("meta"))
            with native.kernels(False):
                assert not native.apply_to(x)
            with torch.autocast("cpu"):
                assert not native.apply_to(x)
            torch.vmap(lambda y: [y, refuse(native.apply_to(y))][0])(x)
    with torch.no_grad():
        assert not native.apply_to(x)


@needs_compiler
@pytest.mark.parametrize("is_masked", [False, True])
def test_an_update_gives_the_same_numbers(is_masked: bool, calls: Counter[str]) -> None:
    rule = small_disco()
    plain = small_agent(rule, NUM_ACTIONS)
    fast = replace(plain, native=True)
    rule_params, rollout = random_rule_params(rule), random_rollout(num_actions=NUM_ACTIONS)
    if is_masked:
        rollout = masked(replace(rollout, actions=KEPT[rollout.actions % len(KEPT)]))
    state = plain.init_state(rng())
    expected, want = update_agent(plain, rule_params, state, rollout)
    assert not calls
    got, info = update_agent(fast, rule_params, state, rollout)
    for a, b in zip(tree.leaves(info.gradient), tree.leaves(want.gradient), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    for a, b in zip(tree.leaves(got), tree.leaves(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert set(calls) == KERNELS


@needs_compiler
def test_meta_gradients_and_populations_never_meet_them(calls: Counter[str]) -> None:
    rule = small_disco()
    plain = small_agent(rule)
    fast = replace(plain, native=True)
    rule_params, rollout = random_rule_params(rule), random_rollout()
    state = plain.init_state(rng())
    results = [
        update_agent(agent, rule_params, state, rollout, differentiable=True)[0]
        for agent in (plain, fast)
    ]
    assert_bit_equal(results[0], results[1])
    stacked = tree.stack([rule_params] * 2), tree.stack([state] * 2), tree.stack([rollout] * 2)
    results = [update_agent(agent, *stacked, each=tree.vmap)[0] for agent in (plain, fast)]
    assert_bit_equal(results[0], results[1])
    assert not calls


@needs_compiler
def test_wrong_shapes_are_refused() -> None:
    native.build()
    kernels, x, index = torch.ops.discorl, normal(4, 5), torch.zeros(4, 2, dtype=torch.long)
    for kernel, args in (
        (kernels.mm, (x, normal(4, 5))),
        (kernels.mm, (x, normal(5))),
        (kernels.linear, (x, normal(3, 4), None)),
        (kernels.linear, (x, normal(3, 5), normal(2))),
        (kernels.softmax_linear, (x, [], [], normal(6, 2), None)),
        (kernels.softmax_linear, (x, [normal(6, 5)], [normal(6)], normal(7, 2), None)),
        (kernels.softmax_linear, (x, [normal(6, 5)], [normal(5)], normal(6, 2), None)),
        (kernels.softmax_linear, (x, [], [], normal(5, 2), normal(3))),
        (kernels.lstm_after_actions, (normal(4, 20), x, normal(3, 20), index + 3)),
        (kernels.lstm_after_actions, (normal(4, 20), x, normal(3, 20), index - 1)),
        (kernels.lstm_after_actions, (normal(4, 19), x, normal(3, 20), index)),
        (kernels.lstm_after_actions, (normal(4, 20), x, normal(3, 20), index[:3])),
        (kernels.lstm_after_action_backward, (x, normal(4, 20), x, normal(3, 20), index[:, 0] + 3)),
        (kernels.lstm_after_action_backward, (x[:3], normal(4, 20), x, normal(3, 20), index[:, 0])),
        (kernels.lstm_after_action_backward, (x, normal(4, 19), x, normal(3, 20), index[:, 0])),
        (kernels.lstm_unroll_backward, (normal(2, 4, 20), normal(5, 19), index.T > 0)),
        (kernels.lstm_unroll_backward, (normal(2, 4, 20), normal(5, 20), index > 0)),
        (kernels.kl_rows, (x, x[:1])),
        (kernels.cross_entropy_rows, (x, index + 5, normal(4, 2))),
        (kernels.cross_entropy_rows, (x, index, normal(4, 1))),
    ):
        with pytest.raises(RuntimeError, match=r"differ|size|width|range|gates"):
            kernel(*args)


@needs_compiler
@pytest.mark.parametrize("path", each(LEARNER_STEPS))
def test_equals_the_reference(
    path: Path, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents as ``discorl train`` makes them: with kernels, and without the steps that do not
    count."""
    monkeypatch.setattr(learner, "Agent", partial(Agent, native=True))
    report = replay(path)
    assert report.worst and calls["cross_entropy_rows"] and calls["mm_over_rows"]
    assert not report.failures, {q: report.worst[q] for q in report.failures}


@needs_compiler
def test_a_second_derivative_is_refused(calls: Counter[str]) -> None:
    x, weight = normal(4, 5).requires_grad_(), normal(3, 5, seed=1)
    with native.kernels(True):
        loss = linear(x, weight).square().sum()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.square().sum().backward()
    assert calls
