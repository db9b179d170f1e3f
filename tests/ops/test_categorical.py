from __future__ import annotations

import math

import pytest
import torch

from discorl.ops import categorical

LOG2, LOG3 = math.log(2), math.log(3)


def test_select_action_takes_one_row_of_each() -> None:
    x = torch.arange(24.0).reshape(2, 2, 3, 2)
    actions = torch.tensor([[0, 2], [1, 0]])
    expected = torch.tensor([[[0.0, 1.0], [10.0, 11.0]], [[14.0, 15.0], [18.0, 19.0]]])
    assert torch.equal(categorical.select_action(x, actions), expected)
    assert torch.equal(categorical.select_action(x[..., 0], actions), expected[..., 0])


def test_log_prob() -> None:
    logits = torch.tensor([[0.0, LOG3], [5.0, 5.0]])  # probabilities 1/4, 3/4 and 1/2, 1/2
    expected = torch.tensor([0.75, 0.5]).log()
    torch.testing.assert_close(categorical.log_prob(logits, torch.tensor([1, 0])), expected)


def test_importance_weight_is_a_constant() -> None:
    pi = torch.tensor([[0.0, LOG3]], requires_grad=True)
    mu = torch.tensor([[7.0, 7.0]])
    rho = categorical.importance_weight(pi, mu, torch.tensor([0]))
    torch.testing.assert_close(rho, torch.tensor([0.25 / 0.5]))
    assert not rho.requires_grad


def test_entropy() -> None:
    logits = torch.tensor([[1.0, 1.0, 1.0, 1.0], [100.0, 0.0, 0.0, 0.0]])
    expected = torch.tensor([2 * LOG2, 0.0])
    torch.testing.assert_close(categorical.entropy(logits), expected)


def test_kl_divergence() -> None:
    """KL((3/4, 1/4) || (1/2, 1/2)) = 3/4 log(3/2) + 1/4 log(1/2), unlike the reverse."""
    p, q = torch.tensor([LOG3, 0.0]), torch.tensor([0.0, 0.0])
    forward = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    backward = 0.5 * math.log(2 / 3) + 0.5 * math.log(2)
    assert categorical.kl_divergence(p, q).item() == pytest.approx(forward)
    assert categorical.kl_divergence(q, p).item() == pytest.approx(backward)
    assert categorical.kl_divergence(p + 3, p - 5).item() == pytest.approx(0, abs=1e-6)


def test_kl_divergence_of_extreme_logits_is_finite() -> None:
    p, q = torch.tensor([1e4, 0.0]), torch.tensor([0.0, 1e4])
    q.requires_grad_()
    loss = categorical.kl_divergence(p, q)
    assert loss.item() == pytest.approx(1e4)
    (grad,) = torch.autograd.grad(loss, q)
    torch.testing.assert_close(grad, torch.tensor([-1.0, 1.0]))


def test_expectation() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0], [-1e9, 0.0, LOG3]])  # on bins -2, 0, 2
    torch.testing.assert_close(categorical.expectation(logits, 2.0), torch.tensor([0.0, 1.5]))


@pytest.mark.parametrize(
    "x, expected",
    [
        (-2.0, [1, 0, 0, 0, 0]),
        (0.0, [0, 0, 1, 0, 0]),
        (2.0, [0, 0, 0, 0, 1]),
        (1.0, [0, 0, 0, 1, 0]),
        (0.25, [0, 0, 0.75, 0.25, 0]),
        (-1.5, [0.5, 0.5, 0, 0, 0]),
        (1.875, [0, 0, 0, 0.125, 0.875]),
        (-7.0, [1, 0, 0, 0, 0]),
        (99.0, [0, 0, 0, 0, 1]),
    ],
)
def test_two_hot(x: float, expected: list[float]) -> None:
    """Exact on a bin; between two, as the reference has it, up to 1e-5."""
    got = categorical.two_hot(torch.tensor([x]), 5, 2.0)
    torch.testing.assert_close(got, torch.tensor([expected]).float(), atol=1.1e-5, rtol=0)
    assert got.sum().item() == pytest.approx(1)
    if x == round(x):
        assert got.flatten().tolist() == expected


def test_two_hot_is_inverted_by_the_mean() -> None:
    x = torch.linspace(-10, 10, 401)
    weights = categorical.two_hot(x, 21, 10.0)
    assert ((weights > 0).sum(-1) <= 2).all()
    mean = weights @ categorical.support(21, 10.0, x)
    torch.testing.assert_close(mean, x, atol=3e-5, rtol=0)
