"""The kernels in C++ against the torch operations that they stand in for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from discorl import tree
from discorl.agents import compiled
from discorl.agents.update import update_agent
from discorl.errors import DiscorlError
from discorl.nets.action_model import ActionModel
from discorl.ops import native
from discorl.ops.losses import kl_loss, two_hot_loss
from discorl.ops.softmax import softmax_linear
from tests.builders import (
    GOLDEN,
    assert_bit_equal,
    random_rollout,
    random_rule_params,
    rng,
    run_python,
    small_agent,
    small_disco,
)
from tests.golden_replay import replay


def compiler_is_missing() -> bool:
    try:
        native.compiler()
    except DiscorlError:
        return True
    return False


needs_compiler = pytest.mark.skipif(
    compiler_is_missing(), reason="needs a C++ compiler: install g++ or clang++, or set CXX"
)


@pytest.fixture
def _built() -> None:
    native.build()


pytestmark = [needs_compiler, pytest.mark.usefixtures("_built")]


@pytest.fixture
def in_use(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every update uses the kernels."""
    kernels = native.kernels
    monkeypatch.setattr(native, "kernels", lambda use: kernels(True))
    with kernels(True):
        yield


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=rng(seed))


def calls_of(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """Notes whenever the kernel of that name is called."""
    calls: list[str] = []
    kernel = getattr(torch.ops.discorl, name)

    def noted(*args: object) -> object:
        calls.append(name)
        return kernel(*args)

    monkeypatch.setattr(torch.ops.discorl, name, noted)
    return calls


@pytest.mark.parametrize("rows", [1, 255, 256, 257, 700])
@pytest.mark.parametrize("sizes", [(9,), (5, 9), (5, 6, 9)], ids=str)
@pytest.mark.parametrize("outputs", [1, 3])
def test_softmax_linear(rows: int, sizes: tuple[int, ...], outputs: int) -> None:
    x = normal(rows, sizes[0])
    layers = [(normal(n, m, seed=n), normal(n, seed=m)) for m, n in itertools.pairwise(sizes)]
    weight, bias = normal(sizes[-1], outputs, seed=3), normal(outputs, seed=4)
    for added in (bias, None):
        with torch.no_grad(), native.kernels(True):
            got = softmax_linear(x, layers, weight, added)
        torch.testing.assert_close(got, softmax_linear(x, layers, weight, added))


def test_rows_and_factors_may_lie_apart_in_memory() -> None:
    x, weight, bias = normal(9, 300).T, normal(3, 9).T, normal(6)[::2]
    layers = [(normal(9, 9).T, normal(18)[::2])]
    with torch.no_grad(), native.kernels(True):
        got = softmax_linear(x, layers, weight, bias)
    torch.testing.assert_close(got, softmax_linear(x, layers, weight, bias))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4])
def test_softmax_is_exact_to_a_few_units_in_the_last_place(scale: float) -> None:
    logits, identity = normal(500, 601, scale=scale), torch.eye(601)
    with torch.no_grad(), native.kernels(True):
        got = softmax_linear(logits, [], identity)
    exact = torch.softmax(logits.double(), -1)
    error = (got - exact).abs() / exact.clamp(min=1e-30)
    assert float(error[exact > 1e-30].max()) < 5e-6  # the exponent is rounded too: |x| * 6e-8


def test_infinity_and_nan_are_as_in_torch() -> None:
    logits = normal(4, 7)
    logits[0, 2] = -torch.inf
    logits[1, 2] = torch.inf
    logits[2, 2] = torch.nan
    with torch.no_grad(), native.kernels(True):
        got = softmax_linear(logits, [], torch.eye(7))
    assert float(got[0, 2]) == 0
    assert got[1].isnan().any() and got[2].isnan().any()
    torch.testing.assert_close(got[[0, 3]], torch.softmax(logits[[0, 3]], -1))


@pytest.mark.parametrize("num_actions", [2, 3, 18])
def test_lstm_after_actions(num_actions: int) -> None:
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


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_losses_and_their_gradients(
    rows: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = calls_of(monkeypatch, "kl_rows"), calls_of(monkeypatch, "cross_entropy_rows")
    logits = normal(rows, 2, 21, scale=scale).requires_grad_()
    target, x = normal(rows, 2, 21, seed=1, scale=scale), normal(rows, 2, seed=2, scale=9.0)

    def losses_and_gradients() -> list[Tensor]:
        losses = kl_loss(target, logits), two_hot_loss(logits, x, 10.0)
        grads = [torch.autograd.grad(loss.square().sum(), logits)[0] for loss in losses]
        return [*losses, *grads]

    expected = losses_and_gradients()
    assert not any(calls)
    with native.kernels(True):
        got = losses_and_gradients()
    assert all(calls)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * max(1.0, scale))


def test_threads_do_not_change_a_bit() -> None:
    x, layers = normal(1500, 8), [(normal(30, 8), normal(30))]
    model = ActionModel(5, 3, {"q": 3}, lstm_size=16, head_hidden=(4,))

    def everything() -> list[Tensor]:
        with torch.no_grad(), native.kernels(True):
            return [
                softmax_linear(x, layers, normal(30, 4)),
                model.transition_all(normal(1500, 16), normal(1500, 64)),
                kl_loss(normal(1500, 30), normal(1500, 30, seed=1)),
            ]

    one = everything()
    torch.set_num_threads(2)
    try:
        assert_bit_equal(everything(), one)
    finally:
        torch.set_num_threads(1)


def test_used_only_where_they_apply() -> None:
    x = normal(3)
    assert not native.apply_to(x)
    with native.kernels(True):
        assert not native.apply_to(x), "a gradient may be wanted"
        with torch.no_grad():
            assert native.apply_to(x)
            assert not native.apply_to(x, x.double())
            assert not native.apply_to(x.to("meta"))
            with native.kernels(False):
                assert not native.apply_to(x)
    with torch.no_grad():
        assert not native.apply_to(x)


def test_an_update_gives_the_same_numbers() -> None:
    rule = small_disco()
    plain = small_agent(rule)
    fast = replace(plain, native=True)
    rule_params, rollout = random_rule_params(rule), random_rollout()
    state = plain.init_state(rng())
    expected, want = update_agent(plain, rule_params, state, rollout)
    got, info = update_agent(fast, rule_params, state, rollout)
    for a, b in zip(tree.leaves(info.gradient), tree.leaves(want.gradient), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    for a, b in zip(tree.leaves(got), tree.leaves(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_a_meta_gradient_never_meets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [calls_of(monkeypatch, name) for name in ("kl_rows", "softmax_linear")]
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
    assert not any(calls)
    update_agent(fast, rule_params, state, rollout)
    assert all(calls)


GOLDEN_FILES = [
    GOLDEN / "disco_small_learner.npz",
    GOLDEN / "actor_critic_learner.npz",
    pytest.param(GOLDEN / "disco103_learner.npz", marks=pytest.mark.disco103),
    *sorted((GOLDEN / "other_sizes").glob("*learner*.npz")),
]


@pytest.mark.usefixtures("in_use")
@pytest.mark.parametrize("path", GOLDEN_FILES, ids=lambda p: p.stem)
def test_equals_the_reference(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = calls_of(monkeypatch, "cross_entropy_rows")
    report = replay(path)
    assert report.worst and calls
    assert not report.failures, {q: report.worst[q] for q in report.failures}


BUILD = "from discorl.ops import native; native.build(); print('built')"


def test_compiled_once_and_kept(tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    assert "built" in run_python("-c", BUILD, env=env).stdout
    (library,) = (tmp_path / "discorl").iterdir()
    made = library.stat().st_mtime_ns
    assert "built" in run_python("-c", BUILD, env=env).stdout
    assert [f.stat().st_mtime_ns for f in (tmp_path / "discorl").iterdir()] == [made]


def test_a_compiler_that_fails_leaves_no_file(tmp_path: Path) -> None:
    failed = run_python("-c", BUILD, env={"XDG_CACHE_HOME": str(tmp_path), "CXX": "false"})
    assert failed.returncode
    assert "false could not compile the kernels" in failed.stderr
    assert list((tmp_path / "discorl").iterdir()) == []


def test_goes_on_without_kernels_that_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise DiscorlError("no C++ compiler was found")

    monkeypatch.setattr(compiled, "_compiler_works", lambda: True)
    monkeypatch.setattr(compiled.torch, "compile", lambda fn: fn)
    monkeypatch.setattr(native, "build", fails)
    with pytest.warns(UserWarning, match="going on without the kernels for the CPU: no C"):
        agent = compiled.compile_agent(small_agent(small_disco()))
    assert not agent.native
