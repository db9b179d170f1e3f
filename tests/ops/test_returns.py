"""Returns against slow loops that are written from the formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from discorl.ops.returns import retrace, vtrace
from tests.builders import rng


def column(*numbers: float) -> Tensor:
    return torch.tensor([[x] for x in numbers])


def random_inputs(num_steps: int, batch: int) -> dict[str, Tensor]:
    generator = rng(num_steps)

    def normal(n: int) -> Tensor:
        return torch.randn(n, batch, generator=generator, dtype=torch.float64)

    ends = torch.rand(num_steps, batch, generator=generator) < 0.3
    return {
        "q_a": normal(num_steps),
        "values": normal(num_steps + 1),
        "rewards": normal(num_steps),
        "discounts": 0.9 * (~ends).double(),
        "rho": normal(num_steps).exp(),
    }


def slow_retrace(q_a, values, rewards, discounts, rho, lambda_):
    """g[t] = r[t] + d[t] (V[t+1] - c[t+1] q[t+1] + c[t+1] g[t+1]), the last from V alone."""
    num_steps, batch = rewards.shape
    g = torch.zeros_like(rewards)
    for b in range(batch):
        for t in reversed(range(num_steps)):
            inner = values[t + 1, b]
            if t + 1 < num_steps:
                c = lambda_ * min(1.0, float(rho[t + 1, b]))
                inner = inner - c * q_a[t + 1, b] + c * g[t + 1, b]
            g[t, b] = rewards[t, b] + discounts[t, b] * inner
    return g


def slow_vtrace(values, rewards, discounts, rho, lambda_):
    """The V-trace paper's sums of products, term by term, and the lambda-mixed advantage."""
    num_steps, batch = rewards.shape
    targets, advantages = torch.zeros_like(rewards), torch.zeros_like(rewards)
    for b in range(batch):
        for t in range(num_steps):
            total, weight = 0.0, 1.0
            for k in range(t, num_steps):
                clipped = min(1.0, float(rho[k, b]))
                delta = rewards[k, b] + discounts[k, b] * values[k + 1, b] - values[k, b]
                total += weight * clipped * delta
                weight *= float(discounts[k, b]) * lambda_ * clipped
            targets[t, b] = values[t, b] + total
        for t in range(num_steps):
            ahead = values[t + 1, b]
            if t + 1 < num_steps:
                ahead = lambda_ * targets[t + 1, b] + (1 - lambda_) * ahead
            clipped = min(1.0, float(rho[t, b]))
            advantages[t, b] = clipped * (rewards[t, b] + discounts[t, b] * ahead - values[t, b])
    return targets, advantages


@pytest.mark.parametrize("lambda_", [0.0, 0.95, 1.0])
@pytest.mark.parametrize("num_steps, batch", [(1, 1), (2, 3), (9, 4)])
def test_retrace_follows_its_formula(num_steps: int, batch: int, lambda_: float) -> None:
    inputs = random_inputs(num_steps, batch)
    torch.testing.assert_close(
        retrace(**inputs, lambda_=lambda_), slow_retrace(**inputs, lambda_=lambda_)
    )


@pytest.mark.parametrize("lambda_", [0.0, 0.95, 1.0])
@pytest.mark.parametrize("num_steps, batch", [(1, 1), (2, 3), (9, 4)])
def test_vtrace_follows_its_formula(num_steps: int, batch: int, lambda_: float) -> None:
    inputs = random_inputs(num_steps, batch)
    del inputs["q_a"]
    got, expected = vtrace(**inputs, lambda_=lambda_), slow_vtrace(**inputs, lambda_=lambda_)
    torch.testing.assert_close(got[0], expected[0])
    torch.testing.assert_close(got[1], expected[1])


def test_retrace_on_policy_with_exact_values_changes_nothing() -> None:
    """Three steps of reward 1 with discount 1/2, V = q = 7/4, 3/2, 1, and nothing after."""
    g = retrace(
        q_a=column(1.75, 1.5, 1.0),
        values=column(1.75, 1.5, 1.0, 0.0),
        rewards=column(1.0, 1.0, 1.0),
        discounts=column(0.5, 0.5, 0.5),
        rho=column(1.0, 1.0, 1.0),
        lambda_=1.0,
    )
    torch.testing.assert_close(g, column(1.75, 1.5, 1.0))


def test_retrace_on_policy_with_lambda_one_is_the_return() -> None:
    """Where q equals V, errors of the values cancel: 1 + 2/2 + 4/4 + 8/8, with 8 the bootstrap."""
    g = retrace(
        q_a=column(9.0, -5.0, 3.0),
        values=column(0.0, -5.0, 3.0, 8.0),
        rewards=column(1.0, 2.0, 4.0),
        discounts=column(0.5, 0.5, 0.5),
        rho=column(1.0, 1.0, 1.0),
        lambda_=1.0,
    )
    torch.testing.assert_close(g, column(4.0, 6.0, 8.0))


def test_retrace_cuts_at_the_end_of_an_episode() -> None:
    g = retrace(
        q_a=column(0.0, 0.0),
        values=column(0.0, 100.0, 100.0),
        rewards=column(1.0, 2.0),
        discounts=column(0.0, 1.0),
        rho=column(1.0, 1.0),
        lambda_=1.0,
    )
    torch.testing.assert_close(g, column(1.0, 102.0))


def test_vtrace_on_policy_with_lambda_one_is_the_return() -> None:
    targets, advantages = vtrace(
        values=column(2.0, -5.0, 3.0, 8.0),
        rewards=column(1.0, 2.0, 4.0),
        discounts=column(0.5, 0.5, 0.5),
        rho=column(1.0, 5.0, 1.0),
        lambda_=1.0,
    )
    torch.testing.assert_close(targets, column(4.0, 6.0, 8.0))
    torch.testing.assert_close(advantages, column(2.0, 11.0, 5.0))


def test_vtrace_ignores_what_the_policy_would_never_do() -> None:
    targets, advantages = vtrace(
        values=column(2.0, 3.0),
        rewards=column(50.0),
        discounts=column(1.0),
        rho=column(0.0),
        lambda_=1.0,
    )
    torch.testing.assert_close(targets, column(2.0))
    torch.testing.assert_close(advantages, column(0.0))
