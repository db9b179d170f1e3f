from __future__ import annotations

import torch
from torch import Tensor

from discorl import optim
from tests.builders import rng


def random_params(seed: int) -> dict[str, Tensor]:
    generator = rng(seed)
    return {
        "a": torch.randn(3, 2, generator=generator, dtype=torch.float64),
        "b": torch.randn(4, generator=generator, dtype=torch.float64),
    }


def run(transform: optim.Transform, params: dict[str, Tensor], gradients: list[dict[str, Tensor]]):
    state = transform.init(params)
    for gradient in gradients:
        updates, state = transform.update(gradient, state, params)
        params = {k: p + updates[k] for k, p in params.items()}
    return params


def test_adam_is_adam() -> None:
    """Up to the debiasing, which is done in float32 as in the reference."""
    params = random_params(0)
    gradients = [random_params(i) for i in range(1, 6)]
    ours = run(
        optim.chain(optim.scale_by_adam(), optim.scale_by_learning_rate(0.1)), params, gradients
    )
    theirs = {k: torch.nn.Parameter(p.clone()) for k, p in params.items()}
    adam = torch.optim.Adam(theirs.values(), lr=0.1)
    for gradient in gradients:
        for k, p in theirs.items():
            p.grad = gradient[k].clone()
        adam.step()
    for k, p in theirs.items():
        torch.testing.assert_close(ours[k], p.detach(), rtol=2e-5, atol=2e-5)


def test_adam_treats_its_second_moment_as_constant() -> None:
    """The first step is g / |g|. With |g| held constant its derivative is 1 / |g|, not 0."""
    adam = optim.scale_by_adam()
    g = torch.tensor([2.0, -0.5], dtype=torch.float64, requires_grad=True)
    params = {"x": torch.zeros(2, dtype=torch.float64)}
    updates, _ = adam.update({"x": g}, adam.init(params), params)
    (grad,) = torch.autograd.grad(updates["x"].sum(), g)
    torch.testing.assert_close(grad, 1 / g.detach().abs(), rtol=2e-5, atol=0)


def test_adam_of_a_zero_gradient_is_zero() -> None:
    adam = optim.scale_by_adam()
    g = torch.zeros(2, requires_grad=True)
    params = {"x": torch.zeros(2)}
    updates, _ = adam.update({"x": g}, adam.init(params), params)
    assert torch.equal(updates["x"], torch.zeros(2))
    (grad,) = torch.autograd.grad(updates["x"].sum(), g)
    assert grad.isfinite().all()


def test_transforms_do_not_work_in_place() -> None:
    params, gradient = random_params(0), random_params(1)
    before = {k: p.clone() for k, p in (params | {f"g{k}": g for k, g in gradient.items()}).items()}
    transform = optim.chain(
        optim.scale_by_adam(),
        optim.clip(0.5),
        optim.add_decayed_weights(0.1),
        optim.scale_by_learning_rate(0.1),
    )
    state = transform.init(params)
    transform.update(gradient, state, params)
    again = transform.init(params)
    assert torch.equal(state[0].mu["a"], again[0].mu["a"])
    for k, p in (params | {f"g{k}": g for k, g in gradient.items()}).items():
        assert torch.equal(p, before[k])


def test_chain_applies_in_order() -> None:
    params = {"x": torch.tensor([10.0])}
    gradient = {"x": torch.tensor([4.0])}
    double = optim.scale_by_learning_rate(-2.0)
    clip = optim.clip(5.0)
    for transform, expected in [(optim.chain(double, clip), 5.0), (optim.chain(clip, double), 8.0)]:
        updates, _ = transform.update(gradient, transform.init(params), params)
        assert updates["x"].item() == expected


def test_clip_keeps_what_is_within() -> None:
    updates, _ = optim.clip(1.0).update({"x": torch.tensor([-3.0, 0.5, 2.0])}, (), {})
    assert updates["x"].tolist() == [-1.0, 0.5, 1.0]


def test_weight_decay_behind_adam_is_decoupled() -> None:
    """x = 10, step -0.1 (1 + 0.2 * 10) = -0.3."""
    transform = optim.chain(
        optim.scale_by_adam(), optim.add_decayed_weights(0.2), optim.scale_by_learning_rate(0.1)
    )
    params = {"x": torch.tensor([10.0])}
    new = run(transform, params, [{"x": torch.tensor([1e-3])}])
    torch.testing.assert_close(new["x"], torch.tensor([9.7]), rtol=1e-5, atol=0)


def test_warmup_cosine() -> None:
    rate = optim.warmup_cosine(peak=2.0, warmup=4, total=12)
    counts = torch.tensor([0.0, 1.0, 3.0, 4.0, 8.0, 12.0, 50.0])
    expected = torch.tensor([0.5, 1.0, 2.0, 2.0, 1.0, 0.0, 0.0])
    torch.testing.assert_close(torch.stack([rate(c) for c in counts]), expected)


def test_schedules_count_updates() -> None:
    transform = optim.scale_by_learning_rate(lambda count: 1.0 + count)
    new = run(transform, {"x": torch.zeros(1)}, [{"x": torch.ones(1)}] * 3)
    assert new["x"].item() == -(1.0 + 2.0 + 3.0)


def test_global_norm() -> None:
    norm = optim.global_norm({"a": torch.tensor([[3.0, 0.0]]), "b": torch.tensor([4.0])})
    assert norm.item() == 5.0
