"""Kernels with an axis of agents against the torch operations that they stand in for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from discorl.errors import DiscorlError
from discorl.ops import lstm, native
from discorl.ops.affine import add_product, linear
from tests.compiler import needs_compiler

pytestmark = needs_compiler
P, N, H, A = 3, 7, 5, 4
SHAPES = [
    *((1, 1, 1), (16, 64, 256), (13, 33, 17), (240, 3, 128), (5, 40, 81), (12, 1, 48)),
    *((64, 240, 64), (7, 2, 1), (1, 91, 49)),
]


@pytest.fixture(autouse=True)
def _built() -> None:
    native.build()
    if not torch.ops.discorl.has_agent_axis():
        pytest.skip("needs AVX-512")


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator)


def in_columns(x: Tensor) -> Tensor:
    """The same matrices in another layout."""
    return x.mT.contiguous().mT


def is_intels() -> bool:
    """Whether this processor is."""
    facts = Path("/proc/cpuinfo")
    return facts.exists() and "GenuineIntel" in facts.read_text()


def with_kernels(fn: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    with native.for_agents(True):
        return fn(*inputs)


@pytest.mark.skipif(is_intels(), reason="Intel's processors keep MKL, which promises less")
@pytest.mark.parametrize(("rows", "depth", "width"), SHAPES)
def test_products_in_every_layout(rows: int, depth: int, width: int) -> None:
    a, b, x = (
        normal(P, rows, depth),
        normal(P, depth, width, seed=1),
        normal(P, rows, width, seed=2),
    )
    want = a.double() @ b.double()
    got = with_kernels(torch.bmm, a, b)
    torch.testing.assert_close(got, want.float(), rtol=1e-5, atol=1e-5)
    for left in (a, in_columns(a)):
        for right in (b, in_columns(b), b[:1].expand(P, -1, -1), torch.stack([b, b], -1)[..., 1]):
            same = with_kernels(torch.bmm, left, right)
            assert torch.equal(same[0], got[0])  # whatever the layout
            for added in (x, x[:, :1], x[:1, :1], in_columns(x)):
                torch.testing.assert_close(
                    with_kernels(torch.baddbmm, added, left, right),
                    same + added,
                    rtol=0,
                    atol=0,
                )


def test_torch_func_sees_torchs_own() -> None:
    """Tensors without memory, and derivatives that the kernels do not have."""
    a, b = normal(P, N, H), normal(P, H, A, seed=1)
    weight = normal(P, A, H, seed=2)

    def product(a: Tensor) -> Tensor:
        return torch.bmm(a, b).square().sum()

    def layer(x: Tensor, weight: Tensor) -> Tensor:
        return linear(x, weight).square().sum()

    for fn, *inputs in (
        (torch.func.grad(product), a),
        (torch.func.jacrev(product), a),
        (torch.vmap(torch.func.grad(layer)), a, weight),
    ):
        torch.testing.assert_close(with_kernels(fn, *inputs), fn(*inputs))


def test_products_keep_nan_and_infinity() -> None:
    a, b = normal(P, N, H), normal(P, H, A)
    a[0, 1, 2], a[1, 3, 0] = torch.nan, torch.inf
    torch.testing.assert_close(with_kernels(torch.bmm, a, b), a @ b, equal_nan=True)


def test_what_does_not_fit_is_left_to_torch() -> None:
    a, b = normal(P, N, H), normal(P, H, A)
    assert torch.equal(with_kernels(torch.bmm, a.double(), b.double()), a.double() @ b.double())
    assert with_kernels(torch.bmm, a[:, :, :0], b[:, :0]).eq(0).all()
    x = normal(P, N, A)
    with native.for_agents(True):
        halved = torch.baddbmm(x, a, b, beta=0.5)
        with pytest.raises(RuntimeError):
            torch.bmm(a, b[:, :2])
    torch.testing.assert_close(halved, 0.5 * x + a @ b)


def test_only_the_thread_that_asks_has_them_and_only_so_long() -> None:
    assert not torch.ops.discorl.multiply_for_agents(False)
    seen = []
    with native.for_agents(True):
        with native.for_agents(False):
            assert torch.ops.discorl.multiply_for_agents(True)
        other = threading.Thread(
            target=lambda: seen.append(torch.ops.discorl.multiply_for_agents(False))
        )
        other.start()
        other.join()
    assert seen == [False]
    assert not torch.ops.discorl.multiply_for_agents(False)


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_whoever_counts_products_sees_torchs() -> None:
    a, b = normal(P, N, H), normal(P, H, A)
    with Seen() as seen:
        with_kernels(torch.bmm, a, b)
    assert "aten.bmm.default" in seen.names


def first_and_second(fn: Callable[..., Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Values of a function of agents, its gradients, and gradients of those."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    out = torch.vmap(fn)(*inputs)
    first = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
    second = torch.autograd.grad([x.square().sum() for x in first], inputs)
    return [out, *first, *second]


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (linear, [(P, N, H), (P, A, H), (P, A)]),
        (linear, [(P, 2, N, H), (P, A, H), (P, A)]),
        (linear, [(P, H), (P, A, H), (P, A)]),
        (linear, [(P, N, H), (P, A, H)]),
        (add_product, [(P, N, A), (P, N, H), (P, H, A)]),
        (add_product, [(P, A), (P, N, H), (P, H, A)]),
    ],
)
def test_layers_have_derivatives_of_any_order(
    fn: Callable[..., Tensor], shapes: list[tuple[int, ...]]
) -> None:
    inputs = [normal(*shape, seed=i) for i, shape in enumerate(shapes)]
    want = first_and_second(fn, [x.double() for x in inputs])
    with native.for_agents(True):
        got = first_and_second(fn, inputs)
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y.float(), rtol=1e-4, atol=1e-4)


def test_what_all_agents_share_need_not_be_stacked() -> None:
    x, weight, bias = normal(P, N, H), normal(A, H), normal(A)
    with native.for_agents(True):
        shared = torch.vmap(linear, in_dims=(0, None, None))(x, weight, bias)
        last = torch.vmap(linear, in_dims=(2, None, None))(x.permute(1, 2, 0), weight, bias)
        own = torch.vmap(linear, in_dims=(None, 0, None))(x[0], weight.expand(P, A, H), bias)
    torch.testing.assert_close(shared, x @ weight.T + bias)
    assert torch.equal(last, shared) and torch.equal(own[1], shared[0])


def gradients(
    fn: Callable[..., Tensor], inputs: Sequence[Tensor], constants: Sequence[Tensor]
) -> list[Tensor]:
    inputs = [x.clone().requires_grad_() for x in inputs]
    out = torch.vmap(fn)(*inputs, *constants)
    return [out, *torch.autograd.grad((out * torch.cos(out.detach() + 1)).sum(), inputs)]


def check(fn: Callable[..., Tensor], inputs: list[Tensor], *constants: Tensor) -> None:
    want = gradients(fn, [x.double() for x in inputs], constants)
    with native.for_agents(True):
        got = gradients(fn, inputs, constants)
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y.float(), rtol=1e-4, atol=1e-5)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of kernels that are called."""
    names: list[str] = []
    for name in ("agents_after_actions_backward", "agents_unroll", "agents_unroll_backward"):
        kernel = getattr(torch.ops.discorl, name)

        def noted(*args: object, name: str = name, kernel: Callable = kernel) -> object:
            names.append(name)
            return kernel(*args)

        monkeypatch.setattr(torch.ops.discorl, name, noted)
    return names


@pytest.mark.parametrize("size", [H, 32])
def test_states_after_actions(size: int, calls: list[str]) -> None:
    state = [normal(P, N, 4 * size), normal(P, N, size, seed=1), normal(P, A, 4 * size, seed=2)]
    actions = torch.randint(A, (P, N, 2), generator=torch.Generator().manual_seed(0))
    check(lstm.after_actions, state, actions)
    check(lstm.after_every_action, state)
    assert calls == ["agents_after_actions_backward"] * 2


@pytest.mark.parametrize(("steps", "size"), [(6, H), (1, H), (15, 64)])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_unroll(steps: int, size: int, share: float, calls: list[str]) -> None:
    """With as many restarts, and weights as the meta-network has them: a view in columns."""
    gates, weight = normal(P, steps, N, 4 * size), normal(P, 4 * size, 3 + size, seed=1) / 4
    reset = torch.rand(P, steps, N, generator=torch.Generator().manual_seed(0)) < share

    def unroll(gates: Tensor, weight: Tensor, reset: Tensor) -> Tensor:
        return lstm.unroll_backward(gates, weight[:, 3:].T, reset)

    check(unroll, [gates, weight], reset)
    assert calls == ["agents_unroll", "agents_unroll_backward"]


def shifted(x: Tensor, by: int) -> Tensor:
    """The same numbers, beginning so many places into their memory."""
    room = x.new_empty(x.numel() + by)
    return room[by:].view_as(x).copy_(x)


@pytest.mark.parametrize("size", [H, 24, 64])
def test_where_numbers_lie_in_memory_changes_no_bit(size: int) -> None:
    """A run that was resumed has its numbers elsewhere."""
    ops = torch.ops.discorl
    gates, cell, of_action = normal(P, N, 4 * size), normal(P, N, size), normal(P, A, 4 * size)
    weight, reset = normal(P, size, 4 * size), normal(P, N, N) > 1
    of_steps = normal(P, N, N, 4 * size)
    actions = torch.arange(A).expand(P, N, A).contiguous()
    wants: list[Tensor] = []
    for by in (0, 1, 3, 4, 8, 15):
        g, c, o, w, s = (shifted(x, by) for x in (gates, cell, of_action, weight, of_steps))
        hidden, cells, opened = ops.agents_unroll(s, w, reset)
        of_gates = ops.agents_unroll_backward(hidden, shifted(opened, by), cells, w, reset)
        after = ops.lstm_after_actions(g[0], c[0], o[0], actions[0])
        grad = shifted(normal(P, N, A, size), by)
        got = [hidden, cells, opened, of_gates, after, with_kernels(torch.bmm, g, w.mT)]
        got += ops.agents_after_actions_backward(grad, g, c, o, actions)
        wants = wants or got
        for x, want in zip(got, wants, strict=True):
            assert torch.equal(x, want), by


def test_second_derivatives_of_the_rest_are_refused() -> None:
    state = [normal(P, N, 4 * H), normal(P, N, H), normal(P, A, 4 * H)]
    with native.for_agents(True), pytest.raises(DiscorlError, match="--kernels off"):
        first_and_second(lstm.after_every_action, state)
