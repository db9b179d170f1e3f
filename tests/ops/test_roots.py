from __future__ import annotations

import numpy as np
import torch

from discorl.ops.roots import exact_sqrt
from tests.builders import rng


def test_square_roots_are_correctly_rounded() -> None:
    x = torch.cat([torch.rand(100_000, generator=rng()) * 10**i for i in range(-3, 5)])
    for view in (x, x[::3], x.view(-1, 8).T, x[0]):  # torch has several ways to go about it
        np.testing.assert_array_equal(exact_sqrt(view).numpy(), np.sqrt(view.numpy()))


def test_its_gradients_are_the_usual() -> None:
    x = torch.rand(50, generator=rng(), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(exact_sqrt, x)
    single = x.detach().float().requires_grad_()
    (gradient,) = torch.autograd.grad(exact_sqrt(single).sum(), single)
    assert gradient.dtype == torch.float32
    torch.testing.assert_close(gradient, (0.5 / x.sqrt()).float())
