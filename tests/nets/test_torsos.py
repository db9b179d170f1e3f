"""Torsos: shapes, sizes of the papers, scaling, and what a meta-gradient and a population need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from discorl import tree
from discorl.agents.agent import Agent, adam_clip, agent_net
from discorl.agents.update import update_agent
from discorl.errors import DiscorlError
from discorl.nets.build import make_torso
from discorl.nets.conv import ConvTorso, ImpalaTorso, NatureTorso
from discorl.nets.encoders import DictTorso, NetHackTorso, crop_around
from discorl.nets.linear import init_params
from discorl.nets.net_config import NetConfig
from discorl.nets.torsos import MLPTorso, network_input
from discorl.types import EnvSpec, ObservationSpec, Rollout
from tests.builders import (
    assert_bit_equal,
    random_rollout,
    random_rule_params,
    rng,
    small_disco,
)

SMALL_NET = NetConfig(torso=(6,), channels=(3, 4), dense=7, action_lstm=5, head_hidden=(6,))
NETHACK = {
    "glyphs": ObservationSpec((21, 79), torch.int16),
    "blstats": ObservationSpec((27,), torch.int64),
    "message": ObservationSpec((256,), torch.uint8),
}
MIXED = {
    "items": ObservationSpec((5,)),  # a name that nn.ModuleDict refuses
    "camera.rgb": ObservationSpec((3, 9, 8), torch.uint8, is_image=True),
}


def pixels(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(256, shape, generator=rng(seed), dtype=torch.uint8)


def nethack_screen(batch: int) -> dict[str, Tensor]:
    generator = rng()
    stats = torch.randint(100, (batch, 27), generator=generator)
    stats[:, 0] = torch.randint(79, (batch,), generator=generator)
    stats[:, 1] = torch.randint(21, (batch,), generator=generator)
    return {
        "glyphs": torch.randint(5976, (batch, 21, 79), generator=generator).short(),
        "blstats": stats,
        "message": pixels(batch, 256),
    }


def stacked_screens(batch: int, num_screens: int = 3) -> dict[str, Tensor]:
    """Screens with the newest last, as a stack of frames shows them."""
    each = nethack_screen(batch * num_screens)
    return {
        "glyphs": each["glyphs"].unflatten(0, (batch, -1)),
        "blstats": each["blstats"].reshape(batch, -1),
        "message": each["message"].reshape(batch, -1),
    }


TORSOS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "mlp": (lambda: MLPTorso(12, (8, 5)), pixels(2, 3, 4)),
    "mlp of a number": (lambda: MLPTorso(1, (8, 5)), torch.randn(2)),
    "mlp of several": (
        lambda: MLPTorso(4, (8, 5)),
        {"one": pixels(2), "three": torch.randn(2, 3)},
    ),
    "conv": (lambda: ConvTorso((3, 7, 7), (2, 3), 5), pixels(2, 3, 7, 7)),
    "conv of a large image": (lambda: ConvTorso((1, 40, 33), (2, 3), 5), pixels(2, 1, 40, 33)),
    "conv of a board": (lambda: ConvTorso((4, 5), (2, 3), 5), torch.ones(2, 4, 5)),
    "nature": (lambda: NatureTorso((2, 36, 40), (2, 3, 4), 5), pixels(2, 2, 36, 40)),
    "impala": (lambda: ImpalaTorso((3, 13, 16), (2, 3), 5), pixels(2, 3, 13, 16)),
    "dict": (
        lambda: make_torso(EnvSpec((), 3, observations=MIXED), SMALL_NET)[0],
        {"items": torch.randn(2, 5), "camera.rgb": pixels(2, 3, 9, 8)},
    ),
    "nethack": (
        lambda: NetHackTorso((21, 79), 27, 256, dense=5, channels=(2, 3)),
        nethack_screen(2),
    ),
    "nethack stacked": (
        lambda: NetHackTorso((3, 21, 79), 81, 768, dense=5, channels=(2, 3)),
        stacked_screens(2),
    ),
}


@pytest.mark.parametrize("name", TORSOS)
def test_embeddings_have_the_size_that_was_promised(name: str) -> None:
    make, observation = TORSOS[name]
    torso = make()
    embedding = torso(observation)
    assert embedding.shape == (2, torso.embedding_size)
    assert embedding.dtype == torch.float32
    assert embedding.isfinite().all()


@pytest.mark.parametrize("name", TORSOS)
def test_rows_do_not_see_each_other(name: str) -> None:
    make, observation = TORSOS[name]
    torso = make()
    one = tree.map(lambda x: x[1:], observation)
    torch.testing.assert_close(torso(one)[0], torso(observation)[1])


@pytest.mark.parametrize("name", TORSOS)
def test_parameters_follow_the_generator(name: str) -> None:
    """Every layer is drawn anew, so that two agents are never equal by accident."""
    torso = TORSOS[name][0]()
    first, again, other = (init_params(torso, rng(seed)) for seed in (1, 1, 2))
    assert_bit_equal(first, again)
    for key, p in first.items():
        if not key.endswith("bias"):
            assert not torch.equal(p, other[key]), key


@pytest.mark.parametrize("name", TORSOS)
def test_double_backward_and_vmap(name: str) -> None:
    make, observation = TORSOS[name]
    torso = make()
    params = {k: p.requires_grad_() for k, p in init_params(torso, rng()).items()}
    out = functional_call(torso, params, (observation,))
    grads = torch.autograd.grad(out.square().sum(), list(params.values()), create_graph=True)
    norm = torch.stack([g.square().sum() for g in grads]).sum()
    second = torch.autograd.grad(norm, list(params.values()))
    assert all(bool(g.isfinite().all()) for g in second)
    assert any(bool(g.any()) for g in second)

    two = [init_params(torso, rng(seed)) for seed in (1, 2)]
    stacked = tree.stack(two)
    together = torch.vmap(lambda p: functional_call(torso, p, (observation,)))(stacked)
    apart = torch.stack([functional_call(torso, p, (observation,)) for p in two])
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-5)
    each = torch.vmap(lambda p, x: functional_call(torso, p, (x,)))(
        stacked, tree.stack([observation, observation])
    )
    torch.testing.assert_close(each, apart, rtol=1e-4, atol=1e-5)


def test_bytes_are_scaled_to_one_and_nothing_else_is() -> None:
    torso = MLPTorso(3, (2,))
    assert network_input(torch.tensor([0, 51, 255], dtype=torch.uint8), torso).tolist() == [
        0.0,
        pytest.approx(0.2),
        1.0,
    ]
    assert network_input(torch.tensor([0.0, 300.0]), torso).tolist() == [0.0, 300.0]
    assert network_input(torch.tensor([0, 300]), torso).dtype == torch.float32
    image = pixels(2, 3, 7, 7)
    conv = ConvTorso((3, 7, 7), (2, 3), 5)
    torch.testing.assert_close(conv(image), conv(image.float() / 255))


def num_params(torso: nn.Module) -> int:
    return sum(p.numel() for p in torso.parameters())


def conv_params(*layers: tuple[int, int, int]) -> int:
    return sum(n * (m * k * k + 1) for m, n, k in layers)


def test_nature_has_the_layers_of_its_paper() -> None:
    with torch.device("meta"):
        torso = NatureTorso((4, 84, 84))
    convs = conv_params((4, 32, 8), (32, 64, 4), (64, 64, 3))
    assert num_params(torso) == convs + 512 * (7 * 7 * 64 + 1)


def test_impala_of_the_paper_has_four_blocks_of_its_sizes() -> None:
    channels = (256, 384, 384, 256)
    with torch.device("meta"):
        torso = ImpalaTorso((4, 84, 84), channels, 768)
    expected = 0
    for m, n in zip((4, *channels), channels, strict=False):
        expected += conv_params((m, n, 3), *[(n, n, 3)] * 4)
    assert num_params(torso) == expected + 768 * (6 * 6 * 256 + 1)


def test_impala_is_what_its_figure_shows() -> None:
    """Block: conv, max-pool, then twice x + conv(relu(conv(relu(x)))); at the end relu, dense."""
    torso = ImpalaTorso((1, 6, 6), (2,), 3)
    block: Any = torso.blocks[0]
    x = torch.randn(4, 1, 6, 6, generator=rng())
    y = nn.functional.max_pool2d(block.conv(x), 3, 2, 1)
    for unit in block.units:
        y = y + unit.second(torch.relu(unit.first(torch.relu(y))))
    expected = torch.relu(torso.dense(torch.relu(y).flatten(1)))
    torch.testing.assert_close(torso(x), expected)


def test_crops_are_centred_and_padded() -> None:
    board = torch.arange(1, 13).reshape(1, 1, 3, 4)
    middle = crop_around(board, torch.tensor([1]), torch.tensor([1]), 3)
    assert middle[0, 0].tolist() == [[1, 2, 3], [5, 6, 7], [9, 10, 11]]
    two = torch.cat([board, 10 * board], 1)
    corner = crop_around(two, torch.tensor([3]), torch.tensor([0]), 3)
    assert corner[0, 0].tolist() == [[0, 0, 0], [3, 4, 0], [7, 8, 0]]
    assert corner[0, 1].tolist() == [[0, 0, 0], [30, 40, 0], [70, 80, 0]]


def test_nethack_reads_every_part() -> None:
    torso = NetHackTorso((21, 79), 27, 256, channels=(2, 3))
    screen = nethack_screen(1)
    before = torso(screen)
    for name, place in (("glyphs", (0, 0, 0)), ("blstats", (0, 9)), ("message", (0, 200))):
        changed = screen[name].clone()
        changed[place] += 50
        assert not torch.equal(torso(screen | {name: changed}), before), name


def test_the_last_screen_of_a_stack_says_where_the_player_is() -> None:
    """With the coarse map switched off, only changes around that place are seen."""
    torso = NetHackTorso((2, 21, 79), 54, dense=5, channels=(2,))
    torso.map[0].weight.data.zero_()  # type: ignore[union-attr]
    screens = stacked_screens(1, 2)
    screens["blstats"][0, [0, 1, 27, 28]] = torch.tensor([5, 5, 60, 10])
    before = torso(screens)
    for screen in (0, 1):
        for (row, column), seen in (((5, 5), False), ((10, 60), True)):
            glyphs = screens["glyphs"].clone()
            glyphs[0, screen, row, column] += 50
            assert torch.equal(torso(screens | {"glyphs": glyphs}), before) != seen


# --- which torso for which environment ------------------------------------------------------------


@pytest.mark.parametrize(
    "spec, kind, expected",
    [
        (EnvSpec((4,), 2), "auto", MLPTorso),
        (EnvSpec((8, 8), 3), "auto", MLPTorso),
        (EnvSpec((4, 10, 10), 3, is_image=True), "auto", ConvTorso),
        (EnvSpec((3, 64, 64), 3, is_image=True), "auto", ImpalaTorso),
        (EnvSpec((4, 84, 84), 3, is_image=True), "auto", ImpalaTorso),
        (EnvSpec((4, 84, 84), 3, is_image=True), "nature", NatureTorso),
        (EnvSpec((4, 84, 84), 3, is_image=True), "mlp", MLPTorso),
        (EnvSpec((8, 8), 3), "conv", ConvTorso),
        (EnvSpec((), 3, observations=MIXED), "auto", DictTorso),
        (EnvSpec((), 3, observations=NETHACK), "auto", NetHackTorso),
        (EnvSpec((), 3, observations=NETHACK), "mlp", DictTorso),
    ],
    ids=str,
)
def test_choice(spec: EnvSpec, kind: Any, expected: type) -> None:
    with torch.device("meta"):
        torso, size = make_torso(spec, NetConfig(torso_kind=kind))
    assert type(torso) is expected
    assert size == torso.embedding_size


def test_sizes_reach_the_torso() -> None:
    spec = EnvSpec((2, 9, 9), 3, is_image=True)
    net = agent_net(spec, small_disco(), NetConfig(channels=(5, 6), dense=11, core_lstm=13))
    shapes = {k: tuple(p.shape) for k, p in net.named_parameters()}
    assert shapes["torso.layers.0.weight"] == (5, 2, 3, 3)
    assert shapes["torso.layers.1.weight"] == (6, 5, 3, 3)
    assert shapes["core.gates.weight"] == (52, 11 + 13)
    assert shapes["flat_heads.logits.weight"] == (3, 13)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: make_torso(EnvSpec((4,), 2), NetConfig(torso_kind="impala")), "torso-kind mlp"),
        (lambda: NatureTorso((4, 20, 84)), "torso-kind conv"),
        (lambda: NatureTorso((4, 84, 84), (2, 3)), "3 channels"),
        (lambda: make_torso(EnvSpec((), 2, observations={}), NetConfig()), "no entries"),
        (lambda: agent_net(EnvSpec((4,), 2), small_disco(), torso=nn.Flatten()), "embedding_size"),
        (lambda: NetConfig(channels=(3, 0)), "width"),
        (lambda: NetConfig(core_lstm=-1), "core_lstm"),
    ],
)
def test_what_does_not_fit_is_explained(make: Callable[[], object], words: str) -> None:
    with pytest.raises(DiscorlError, match=words):
        make()


# --- a torso of one's own -------------------------------------------------------------------------


class MyTorso(nn.Module):
    embedding_size = 64

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(16, 64), nn.ReLU())

    def forward(self, observation: Tensor) -> Tensor:
        return self.layers(observation)


@pytest.mark.parametrize("core", [0, 5])
def test_a_torso_of_ones_own_trains(core: int) -> None:
    rule = small_disco()
    spec = EnvSpec((4, 4), 3)
    net = agent_net(spec, rule, NetConfig(core_lstm=core, action_lstm=5), torso=MyTorso())
    agent = Agent(net, rule, adam_clip(1e-2))
    state = agent.init_state(rng())
    new, _ = update_agent(agent, random_rule_params(rule), state, random_rollout(4, 2, 3, (4, 4)))
    name = "torso.layers.1.weight"
    assert not torch.equal(new.params[name], state.params[name])


@pytest.mark.parametrize("core", [0, 5])
@pytest.mark.parametrize("observations", [MIXED, NETHACK], ids=["mixed", "nethack"])
def test_dict_observations_train(observations: dict[str, ObservationSpec], core: int) -> None:
    rule = small_disco()
    spec = EnvSpec((), 3, observations=observations)
    config = NetConfig(torso=(6,), channels=(2, 3), dense=7, action_lstm=5, core_lstm=core)
    agent = Agent(agent_net(spec, rule, config), rule, adam_clip(1e-2))
    rollout = dict_rollout(observations)
    state = agent.init_state(rng())
    rule_params = random_rule_params(rule)
    new, info = update_agent(agent, rule_params, state, rollout)
    assert tree.is_finite((new, info))
    followed, _ = update_agent(agent, rule_params, state, rollout, differentiable=True)
    assert_bit_equal(new, followed)
    for name in state.params:
        if name.startswith("torso") and name.endswith("weight"):
            assert not torch.equal(new.params[name], state.params[name]), name


@pytest.mark.parametrize("core", [0, 5])
@pytest.mark.parametrize(
    "kind, shape", [("conv", (2, 5, 5)), ("nature", (1, 36, 36)), ("impala", (2, 12, 12))]
)
def test_images_train_alike_with_and_without_a_meta_gradient(
    kind: Any, shape: tuple[int, ...], core: int
) -> None:
    rule = small_disco()
    channels = (2, 3, 4) if kind == "nature" else (2, 3)
    config = NetConfig(
        torso_kind=kind, channels=channels, dense=7, action_lstm=5, head_hidden=(6,), core_lstm=core
    )
    agent = Agent(agent_net(EnvSpec(shape, 3), rule, config), rule, adam_clip(1e-2))
    rule_params, plain = random_rule_params(rule), agent.init_state(rng())
    followed = plain
    leaves = {k: p.clone().requires_grad_() for k, p in rule_params.items()}
    for i in range(2):
        rollout = replace(random_rollout(4, 3, seed=i), observations=pixels(4, 3, *shape, seed=i))
        plain, _ = update_agent(agent, rule_params, plain, rollout)
        followed, _ = update_agent(agent, leaves, followed, rollout, differentiable=True)
    assert_bit_equal(plain, followed)
    total = torch.stack([p.square().sum() for p in followed.params.values()]).sum()
    grads = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
    assert any(bool(g.any()) for g in grads)
    assert all(bool(g.isfinite().all()) for g in grads)


def dict_rollout(observations: dict[str, ObservationSpec]) -> Rollout:
    """4 steps of 2 trajectories."""
    plain = random_rollout(4, 2)
    parts: Any = {
        name: (10 * torch.randn(4, 2, *part.shape, generator=rng())).abs().to(part.dtype)
        for name, part in observations.items()
    }
    return Rollout(parts, plain.actions, plain.rewards, plain.discounts, plain.behaviour_logits)
