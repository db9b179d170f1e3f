"""Losses whose gradients are written out, against autograd on the plain formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from discorl.ops import native
from discorl.ops.categorical import kl_divergence, two_hot
from discorl.ops.losses import kl_loss, two_hot_loss
from tests.builders import rng
from tests.compiler import needs_compiler


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64, requires_grad=True)


def plain_two_hot_loss(logits: Tensor, x: Tensor) -> Tensor:
    return -(two_hot(x, logits.shape[-1], 3.0) * torch.log_softmax(logits, -1)).sum(-1)


@pytest.mark.parametrize("rows", [1, 5, 800])
def test_kl_loss_is_the_divergence_and_has_its_gradient(rows: int) -> None:
    target, logits, weight = normal(rows, 4), normal(rows, 4, seed=1), normal(rows, seed=2)
    loss, plain = kl_loss(target, logits), kl_divergence(target, logits)
    torch.testing.assert_close(loss, plain)
    (grad,) = torch.autograd.grad((loss * weight).sum(), logits)
    (expected,) = torch.autograd.grad((plain * weight).sum(), logits)
    torch.testing.assert_close(grad, expected)


def test_kl_loss_keeps_leading_axes() -> None:
    assert kl_loss(normal(2, 3, 4), normal(2, 3, 4, seed=1)).shape == (2, 3)


def test_kl_loss_holds_the_target_constant_in_first_order_only() -> None:
    """The loss has no gradient for the target, but the gradient of the prediction has one."""
    target, logits, v = normal(3, 4), normal(3, 4, seed=1), normal(3, 4, seed=2).detach()
    loss = kl_loss(target, logits).sum()
    direct, grad = torch.autograd.grad(loss, [target, logits], create_graph=True, allow_unused=True)
    assert direct is None
    second = torch.autograd.grad((grad * v).sum(), [target, logits])
    (of_target,) = torch.autograd.grad((-torch.softmax(target, -1) * v).sum(), target)
    (of_logits,) = torch.autograd.grad((torch.softmax(logits, -1) * v).sum(), logits)
    torch.testing.assert_close(second[0], of_target)
    torch.testing.assert_close(second[1], of_logits)


def test_two_hot_loss_is_the_cross_entropy_and_has_its_gradient() -> None:
    logits = normal(2, 400, 7)
    x = torch.linspace(-4, 4, 800, dtype=torch.float64).reshape(2, 400)
    x[0, :7] = torch.arange(-3, 4)  # on the bins
    loss, plain = two_hot_loss(logits, x, 3.0), plain_two_hot_loss(logits, x)
    torch.testing.assert_close(loss, plain)
    (grad,) = torch.autograd.grad(loss.square().sum(), logits)
    (expected,) = torch.autograd.grad(plain.square().sum(), logits)
    torch.testing.assert_close(grad, expected)


def test_second_derivatives() -> None:
    logits = normal(3, 4)
    target = normal(3, 4, seed=1).detach()
    x = torch.tensor([-2.5, 0.0, 1.2], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda p: kl_loss(target, p), logits)
    assert torch.autograd.gradgradcheck(lambda p: kl_loss(target, p), logits)
    assert torch.autograd.gradcheck(lambda p: two_hot_loss(p, x, 3.0), logits)
    assert torch.autograd.gradgradcheck(lambda p: two_hot_loss(p, x, 3.0), logits)


def test_vmap() -> None:
    """A population of agents is one more axis."""
    target, logits = normal(5, 3, 4).detach(), normal(5, 3, 4, seed=1)
    x = torch.linspace(-3, 3, 15, dtype=torch.float64).reshape(5, 3)
    for batched, plain in [
        (torch.vmap(kl_loss)(target, logits), kl_divergence(target, logits)),
        (
            torch.vmap(lambda p, x: two_hot_loss(p, x, 3.0))(logits, x),
            plain_two_hot_loss(logits, x),
        ),
    ]:
        torch.testing.assert_close(batched, plain)
        (grad,) = torch.autograd.grad(batched.sum(), logits)
        (expected,) = torch.autograd.grad(plain.sum(), logits)
        torch.testing.assert_close(grad, expected)


def in_large_logits(shift: float, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of targets and of predictions in float32, and values for a two-hot target."""
    target, logits, x = (
        normal(*shape, seed=seed).detach() for seed, shape in enumerate([(40, 21), (40, 21), (40,)])
    )
    return (shift + scale * target).float(), (shift / 3 + scale * logits).float(), x.float()


@pytest.mark.parametrize("kernels", [False, pytest.param(True, marks=needs_compiler)])
@pytest.mark.parametrize(
    "shift, scale", [(0.0, 1.0), (50.0, 1.0), (1e3, 1.0), (1e5, 1.0), (0.0, 1e3), (0.0, 1e5)]
)
def test_large_logits_cost_the_loss_no_digits(shift: float, scale: float, kernels: bool) -> None:
    target, logits, x = in_large_logits(shift, scale)
    if kernels:
        native.build()
    with native.kernels(kernels):
        got = kl_loss(target, logits), two_hot_loss(logits, x, 3.0)
    exact = (
        kl_divergence(target.double(), logits.double()),
        # Where between two bins x lies is rounded in float32 in any form of the loss.
        -(two_hot(x, 21, 3.0) * torch.log_softmax(logits.double(), -1)).sum(-1),
    )
    for loss, want in zip(got, exact, strict=True):
        torch.testing.assert_close(loss.double(), want, rtol=2e-6, atol=0.0)


def test_extreme_logits_are_finite() -> None:
    logits = torch.tensor([[0.0, 1e4]], requires_grad=True)
    loss = kl_loss(torch.tensor([[1e4, 0.0]]), logits)
    assert loss.item() == pytest.approx(1e4)
    (grad,) = torch.autograd.grad(loss.sum(), logits)
    torch.testing.assert_close(grad, torch.tensor([[-1.0, 1.0]]))


def test_a_nan_target_is_a_nan_loss_and_no_crash() -> None:
    loss = two_hot_loss(torch.zeros(2, 5), torch.tensor([float("nan"), 1.0]), 2.0)
    assert loss.isnan().tolist() == [True, False]
