"""Convolutions by kernels against those of torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discorl import tree
from discorl.agents.agent import Agent, adam_clip, agent_net
from discorl.agents.update import update_agent
from discorl.nets.conv import ConvTorso, ImpalaTorso, NatureTorso
from discorl.nets.net_config import NetConfig
from discorl.ops import convolution, native
from discorl.ops.convolution import by_kernel, convolve
from discorl.types import EnvSpec
from tests.builders import assert_bit_equal, random_rollout, random_rule_params, rng, small_disco
from tests.compiler import needs_compiler

pytestmark = needs_compiler


@dataclass(frozen=True)
class Layer:
    channels: int
    height: int
    width: int
    outputs: int
    kernel: int
    stride: int
    padding: int

    def weights(self) -> tuple[Tensor, Tensor]:
        weight = normal(self.outputs, self.channels, self.kernel, self.kernel, seed=1)
        return weight / weight[0].numel() ** 0.5, normal(self.outputs, seed=2)


LAYERS = (
    Layer(4, 84, 84, 32, 8, 4, 0),  # Nature
    Layer(32, 20, 20, 64, 4, 2, 0),
    Layer(64, 9, 9, 64, 3, 1, 0),
    Layer(16, 42, 42, 16, 3, 1, 1),  # IMPALA
    Layer(32, 11, 11, 32, 3, 1, 1),
    Layer(4, 31, 33, 17, 8, 4, 0),  # sizes that nothing divides
    Layer(9, 13, 10, 33, 6, 2, 0),
    Layer(8, 7, 5, 3, 2, 1, 1),
    Layer(33, 4, 3, 70, 3, 1, 0),
)
SHALLOW = (Layer(4, 84, 84, 16, 3, 1, 1), Layer(3, 10, 11, 18, 3, 1, 1), Layer(1, 5, 3, 2, 3, 1, 0))
AROUND = ("", "then_relu", "then_pool", "relu_first", "plus", "relu_first, plus")


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels, for any number of images."""
    native.build()
    if not torch.ops.discorl.has_convolutions():
        pytest.skip("needs a processor with AVX-512")
    monkeypatch.setattr(convolution, "MIN_IMAGES", 1)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=rng(seed))


def pixels(*shape: int) -> Tensor:
    return torch.randint(256, shape, generator=rng(), dtype=torch.uint8)


def results(
    x: Tensor, layer: Layer, around: str, *, kernels: bool, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Outputs, then gradients of the weights, the bias, and of what else has one."""
    if x.dtype == torch.uint8 and not kernels:
        x = x.to(dtype) / 255
    elif x.dtype != torch.uint8:
        x = x.to(dtype)
        x.requires_grad_(layer not in SHALLOW)
    weight, bias = (p.to(dtype).requires_grad_() for p in layer.weights())
    geometry = layer.stride, layer.padding
    options: dict[str, Any] = {name: True for name in around.split(", ") if name}
    leaves = [weight, bias, *([x] if x.requires_grad else [])]
    with native.kernels(kernels):
        if "plus" in options:
            size = nn.functional.conv2d(torch.zeros(x.shape), weight.float(), None, *geometry)
            options["plus"] = normal(*size.shape, seed=3).to(dtype).requires_grad_()
            leaves.append(options["plus"])
        is_first = not x.requires_grad
        assert by_kernel(x, weight, *geometry, is_first=is_first) == kernels
        out = convolve(x, weight, bias, *geometry, **options)
    gradient = normal(*out.shape, seed=4).to(dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, gradient)]


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_as_exact_as_torch(layer: Layer, around: str) -> None:
    x = normal(3, layer.channels, layer.height, layer.width)
    check(x, layer, around)


@pytest.mark.parametrize("around", AROUND[:3])
@pytest.mark.parametrize("layer", LAYERS + SHALLOW, ids=str)
def test_bytes_are_numbers_up_to_one(layer: Layer, around: str) -> None:
    check(pixels(3, layer.channels, layer.height, layer.width), layer, around)


@pytest.mark.parametrize("around", AROUND[:3])
@pytest.mark.parametrize("layer", SHALLOW, ids=str)
def test_few_channels(layer: Layer, around: str) -> None:
    check(normal(3, layer.channels, layer.height, layer.width), layer, around)


def check(x: Tensor, layer: Layer, around: str) -> None:
    got, torchs = (results(x.clone(), layer, around, kernels=k) for k in (True, False))
    exact = results(x.clone(), layer, around, kernels=False, dtype=torch.float64)
    for a, b, c in zip(got, torchs, exact, strict=True):
        size = c.abs().max()
        error, torchs_error = ((y - c).abs().max() / size for y in (a, b))
        assert error < 2e-6 + torchs_error, (error, torchs_error)


@pytest.mark.parametrize("layer", [LAYERS[3], LAYERS[7], *SHALLOW], ids=str)
def test_the_first_of_equals_wins(layer: Layer) -> None:
    """With small whole numbers nothing is rounded, and many pixels are equal."""
    x = torch.randint(3, (5, layer.channels, layer.height, layer.width), generator=rng()).float()
    weight = torch.randint(
        -1, 2, (layer.outputs, layer.channels, layer.kernel, layer.kernel), generator=rng(1)
    ).float()
    found: list[list[Tensor]] = []
    for kernels in (True, False):
        w, b = weight.clone().requires_grad_(), torch.zeros(layer.outputs, requires_grad=True)
        with native.kernels(kernels):
            out = convolve(x, w, b, layer.stride, layer.padding, then_pool=True)
        gradient = torch.randint(-3, 4, out.shape, generator=rng(2)).float()
        found.append([out.detach(), *torch.autograd.grad(out, (w, b), gradient)])
    assert_bit_equal(found[0], found[1])


@pytest.mark.parametrize("layer", [LAYERS[1], LAYERS[3], SHALLOW[0]], ids=str)
@pytest.mark.parametrize("around", AROUND[:3])
def test_nan_is_not_hidden(layer: Layer, around: str) -> None:
    x = normal(2, layer.channels, layer.height, layer.width)
    x[1, 0, 2, 2] = torch.nan
    got, expected = (results(x.clone(), layer, around, kernels=k)[0] for k in (True, False))
    assert expected.isnan().any()
    assert bool(got.isnan()[expected.isnan()].all())
    assert not got[0].isnan().any()


@pytest.mark.parametrize("layer", [LAYERS[0], LAYERS[2], LAYERS[4], SHALLOW[1]], ids=str)
@pytest.mark.parametrize("around", ["then_relu", "then_pool"])
def test_rows_without_a_gradient_are_left_out(layer: Layer, around: str) -> None:
    """3 steps of 4 environments, of which the last has no loss."""
    x = normal(12, layer.channels, layer.height, layer.width)
    x.requires_grad_(layer not in SHALLOW)
    counts = torch.tensor([[True, False, False, True], [False, True, False, True]])
    weight, bias = (p.requires_grad_() for p in layer.weights())
    options: dict[str, Any] = {around: True}
    with native.kernels(True):
        out = convolve(x, weight, bias, layer.stride, layer.padding, **options)
    gradient = normal(*out.shape, seed=4)
    gradient[8:] = 0
    gradient[:8][~counts.flatten()] = 0
    leaves = [weight, bias, *([x] if x.requires_grad else [])]
    expected = torch.autograd.grad(out, leaves, gradient, retain_graph=True)
    with native.gradient_in(counts):
        got = torch.autograd.grad(out, leaves, gradient)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * float(b.abs().max()))


@pytest.mark.parametrize("layer", [LAYERS[1], SHALLOW[0]], ids=str)
def test_threads_do_not_change_a_bit(layer: Layer) -> None:
    x, threads = pixels(21, layer.channels, layer.height, layer.width), torch.get_num_threads()
    found: list[list[Tensor]] = []
    try:
        for num in (1, 2, 3):
            torch.set_num_threads(num)
            found.append(results(x, layer, "then_pool", kernels=True))
    finally:
        torch.set_num_threads(threads)
    assert_bit_equal(found[0], found[1])
    assert_bit_equal(found[0], found[2])


def test_no_images_and_images_that_lie_apart() -> None:
    layer = LAYERS[4]
    weight, bias = layer.weights()
    x = normal(6, layer.height, layer.channels, 2 * layer.width).transpose(1, 2)[..., ::2]
    with native.kernels(True):
        got = convolve(x, weight, bias, 1, 1)
        none = torch.ops.discorl.conv2d(x[:0], weight, bias, None, 1, 1, False, False, True)[0]
    torch.testing.assert_close(got, convolve(x, weight, bias, 1, 1), rtol=1e-4, atol=1e-5)
    assert none.shape == (0, 32, 6, 6)


def test_other_convolutions_are_torchs() -> None:
    images = normal(2, 16, 12, 12)
    for kernel, stride, padding in ((5, 1, 0), (3, 2, 1), (1, 1, 0), (4, 2, 1), (3, 1, 2)):
        weight, bias = normal(6, 16, kernel, kernel), normal(6)
        with native.kernels(True):
            got = convolve(images, weight, bias, stride, padding)
        assert_bit_equal(got, nn.functional.conv2d(images, weight, bias, stride, padding))
    weight = normal(6, 16, 3, 3)

    def is_ours(x: Tensor, weight: Tensor) -> bool:
        return by_kernel(x, weight, 1, 1, is_first=False)

    with native.kernels(True):
        assert is_ours(images, weight)
        assert not is_ours(images.double(), weight.double())
        assert not is_ours(images[:0], weight)
        assert not is_ours(images[:, :4], weight[:, :4])
    assert not is_ours(images, weight)


def test_wrong_shapes_are_refused() -> None:
    x, weight, bias = normal(2, 16, 12, 12), normal(6, 16, 3, 3), normal(6)
    conv2d, backward = torch.ops.discorl.conv2d, torch.ops.discorl.conv2d_backward
    grad, rows = normal(2, 6, 12, 12), torch.arange(2)
    at_once = (1, 1, False, False, False)
    for kernel, args in (
        (conv2d, (x[:, :15], weight, bias, None, *at_once)),
        (conv2d, (x.double(), weight, bias, None, *at_once)),
        (conv2d, (x, weight[..., :2], bias, None, *at_once)),
        (conv2d, (x, normal(6, 16, 5, 5), bias, None, *at_once)),
        (conv2d, (x, weight, bias[:5], None, *at_once)),
        (conv2d, (x, weight, bias, grad[:1], *at_once)),
        (conv2d, (x, weight, bias, None, 1, 3, False, False, False)),
        (conv2d, (x[:, :4], weight[:, :4], bias, None, 1, 1, True, False, False)),
        (conv2d, (x[..., :1], weight, bias, None, 1, 0, False, False, False)),
        (backward, (grad[:1], x, weight, None, None, None, 1, 1, False, True)),
        (backward, (grad, x, weight, grad[..., :3], None, None, 1, 1, False, True)),
        (backward, (grad, x, weight, None, grad.byte(), None, 1, 1, False, True)),
        (backward, (grad, x, weight, None, None, rows + 1, 1, 1, False, True)),
        (backward, (grad, x, weight, None, None, rows.flip(0), 1, 1, False, True)),
        (backward, (grad, x.byte(), weight, None, None, None, 1, 1, False, True)),
    ):
        with pytest.raises(
            RuntimeError, match=r"fit|size|kernel|padding|small|floats|rows|sh|no gr"
        ):
            kernel(*args)


TORSOS = {
    "nature": (NatureTorso, (4, 84, 84), (32, 64, 64)),
    "impala": (ImpalaTorso, (3, 21, 18), (16, 9)),
    "conv": (ConvTorso, (4, 10, 10), (16, 32)),
}


@pytest.mark.parametrize("name", TORSOS)
@pytest.mark.parametrize("as_bytes", [True, False])
def test_torsos_give_the_same_numbers(name: str, as_bytes: bool) -> None:
    make, shape, channels = TORSOS[name]
    torso = make(shape, channels, 8)
    x = pixels(4, *shape) if as_bytes else normal(4, *shape)
    found: list[list[Tensor]] = []
    for kernels in (True, False):
        with native.kernels(kernels):
            out = torso(x)
            grads = torch.autograd.grad(out.square().sum(), list(torso.parameters()))
        found.append([out.detach(), *grads])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * float(b.abs().max()))


@pytest.mark.parametrize("kind", ["nature", "impala"])
def test_an_update_gives_the_same_numbers(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, shape = small_disco(), (4, 36, 36)
    config = NetConfig((6,), 5, (6,), torso_kind=kind, channels=(8, 9, 10), dense=7)
    net = agent_net(EnvSpec(shape, 3, is_image=True), rule, config)
    plain = Agent(net, rule, adam_clip(1e-3))
    rollout = random_rollout()
    steps = rollout.rewards.shape
    rollout = replace(rollout, observations=pixels(*steps, *shape))
    rule_params, state = random_rule_params(rule), plain.init_state(rng())
    _, expected = update_agent(plain, rule_params, state, rollout)
    calls: list[bool] = []
    ours = torch.ops.discorl.conv2d_backward
    monkeypatch.setattr(
        torch.ops.discorl,
        "conv2d_backward",
        lambda *args: [ours(*args), calls.append(args[5] is not None)][0],
    )
    _, got = update_agent(replace(plain, native=True), rule_params, state, rollout)
    for a, b in zip(tree.leaves(got.gradient), tree.leaves(expected.gradient), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    assert calls and all(calls), "rows that do not count are left out"
    calls.clear()
    results = [
        update_agent(agent, rule_params, state, rollout, differentiable=True)[0]
        for agent in (plain, replace(plain, native=True))
    ]
    assert_bit_equal(results[0], results[1])
    assert not calls
