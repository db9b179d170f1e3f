from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import discorl
from discorl import tree
from discorl.agents.agent import Agent, adam_clip, agent_net, mlp_agent_net
from discorl.agents.network import with_params
from discorl.errors import DiscorlError
from discorl.nets.agent_net import AgentNet
from discorl.nets.linear import MLP, init_params
from discorl.nets.lstm import LSTM
from discorl.nets.net_config import NetConfig
from discorl.nets.torsos import MLPTorso
from discorl.ops.categorical import select_action
from discorl.ops.softmax import mlp
from discorl.rules import ActorCritic
from discorl.types import (
    DiscoPredictions,
    EnvSpec,
    Heads,
    LSTMState,
    Reader,
    ReadUnroll,
    Rollout,
    TimeStep,
)
from tests.builders import assert_bit_equal, disturbed, double, random_rollout, rng, small_disco

# Readers that keep everything: what is read is then what was predicted.
EVERYTHING = Reader(
    y=lambda x, layers: (mlp(x, layers), 2 * mlp(x, layers)),
    z=lambda x, layers: (mlp(x, layers), 2 * mlp(x, layers)),
    q=lambda x, layers: mlp(x, layers).sum(-1),
)


def net_and_params(num_actions: int, torso: tuple[int, ...] = (7, 6)):
    net = mlp_agent_net(EnvSpec((2, 2), num_actions), small_disco(), torso, 5, (6,))
    params = disturbed(init_params(net, rng()), 0.3)
    return net, {k: p.double() for k, p in params.items()}


def outputs(net: AgentNet, params: dict[str, Tensor], observation: Tensor) -> Any:
    return with_params(net, params, lambda net: net.output(observation))


def unrolled_with(
    net: AgentNet, params: dict[str, Tensor], rollout: Rollout, differentiable: bool = False
) -> ReadUnroll[DiscoPredictions]:
    unrolled = with_params(
        net, params, lambda net: net.unroll(rollout, EVERYTHING, differentiable=differentiable)
    )
    assert isinstance(unrolled, ReadUnroll)
    return unrolled


@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize("num_steps, batch", [(4, 3), (2, 1), (30, 20)])
@pytest.mark.parametrize("num_actions", [1, 2, 3, 18])
def test_unroll_agrees_with_output(
    num_actions: int, num_steps: int, batch: int, differentiable: bool
) -> None:
    """Taken actions are those of the full output; the reading is that of the full z and q."""
    net, params = net_and_params(num_actions)
    rollout = double(random_rollout(num_steps, batch, num_actions, (2, 2)))
    actions = rollout.actions
    full = outputs(net, params, rollout.observations.flatten(0, 1))
    out = {
        name: getattr(full, name).unflatten(0, (num_steps, batch))
        for name in ("logits", "y", "z", "q", "aux_pi")
    }
    unrolled = unrolled_with(net, params, rollout, differentiable)
    expected = {name: out[name] for name in ("logits", "y")}
    expected |= {f"{name}_a": select_action(out[name], actions) for name in ("z", "q", "aux_pi")}
    for name, x in expected.items():
        got = getattr(unrolled.predictions, name)
        assert len(got) >= num_steps - 1
        torch.testing.assert_close(got, x[: len(got)], msg=name)

    target = with_params(net, params, lambda net: net.read(rollout, EVERYTHING))
    for reading in (unrolled.reading, target.reading):
        torch.testing.assert_close(reading.y, (out["y"], 2 * out["y"]))
        torch.testing.assert_close(reading.z, (out["z"], 2 * out["z"]))
        torch.testing.assert_close(reading.q_value, out["q"].sum(-1))


def test_a_step_is_the_logits() -> None:
    net, params = net_and_params(3)
    x = torch.randn(5, 2, 2, generator=rng()).double()
    now = TimeStep(x, torch.zeros(5), torch.ones(5))
    logits, memory = with_params(net, params, lambda net: net.step(now, net.initial_memory(5)))
    assert memory is None
    assert_bit_equal(logits, outputs(net, params, x).logits)
    assert_bit_equal(logits, functional_call(net, params, (x,)).logits)


def test_readings_carry_gradients_only_if_asked() -> None:
    net, params = net_and_params(3)
    rollout = double(random_rollout(4, 2, 3, (2, 2)))
    params = {k: p.requires_grad_() for k, p in params.items()}
    for differentiable in (False, True):
        unrolled = unrolled_with(net, params, rollout, differentiable)
        assert all(x.requires_grad is differentiable for x in unrolled.reading.z)
        assert all(x.requires_grad for x in tree.leaves(unrolled.predictions))


def test_action_model_is_one_lstm_step_for_each_one_hot_action() -> None:
    """cell = Linear(torso), hidden = tanh(cell), then the step; written without any sharing."""
    net, params = net_and_params(3)
    x = torch.randn(5, 2, 2, generator=rng()).double()
    out = outputs(net, params, x)
    net = net.double()
    net.load_state_dict(params)
    model = net.action_model
    assert model is not None
    lstm, head = model.lstm, model.heads["z"]
    assert isinstance(lstm, LSTM)
    assert isinstance(head, MLP)
    cell = model.root(net.torso(x))
    for action in range(3):
        one_hot = torch.eye(3).double()[action].expand(5, 3)
        hidden = lstm.step(one_hot, LSTMState(torch.tanh(cell), cell)).hidden
        torch.testing.assert_close(out.z[:, action], head(hidden))


def test_torso_has_no_activation_after_its_last_layer() -> None:
    torso = MLPTorso(4, (8, 5))
    first, second = torso.mlp.layers
    x = torch.randn(30, 2, 2, generator=rng())
    expected = second(torch.relu(first(x.reshape(30, 4))))
    torch.testing.assert_close(torso(x), expected)
    assert (expected < 0).any()


def test_any_torso_will_do() -> None:
    """A network of your own: here a convolution."""
    rule = small_disco()
    torso = nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv2d(1, 2, 2), nn.Flatten())
    net = AgentNet(torso, 18, 3, rule.heads(3), 5, (6,))
    rollout = random_rollout(4, 2, 3, (4, 4))
    params = init_params(net, rng())
    unrolled = unrolled_with(net, params, rollout)
    assert unrolled.predictions.logits.shape == (4, 2, 3)


@pytest.mark.parametrize("rule", [small_disco(), ActorCritic()], ids=["disco", "actor-critic"])
@pytest.mark.parametrize("zero_values", [False, True])
def test_values_can_begin_at_zero(rule: Any, zero_values: bool) -> None:
    config = NetConfig(torso=(7,), action_lstm=5, head_hidden=(6,), zero_values=zero_values)
    net = agent_net(EnvSpec((4,), 3), rule, config)
    params = init_params(net, rng())
    out = outputs(net, params, torch.randn(8, 4, generator=rng()))
    largest = rule.state_value(out).abs().max()
    assert (largest < 1e-4) == zero_values  # rounding, over all the bins
    assert (out.logits != 0).all()
    for head in {"y", "z"} & set(rule.heads(3).flat):
        assert (getattr(out, head) != 0).all()


# --- heads that do not fit -----------------------------------------------------------------------


def agent_with(net: Any) -> Agent:
    return Agent(net, small_disco(), adam_clip(1e-2))


def test_a_missing_head_is_named() -> None:
    net = mlp_agent_net(EnvSpec((4,), 3), ActorCritic(), (4,))
    with pytest.raises(DiscorlError, match=r"lacks the head 'y' \(size 6\)"):
        agent_with(net)
    heads = small_disco().heads(3)
    without_q = Heads(heads.flat, {k: n for k, n in heads.per_action.items() if k != "q"})
    with pytest.raises(DiscorlError, match="lacks the head 'q'"):
        agent_with(AgentNet(MLPTorso(4, (4,)), 4, 3, without_q))


def test_a_head_of_the_wrong_size_is_named() -> None:
    heads = small_disco().heads(3)
    other = Heads(heads.flat | {"y": 5}, heads.per_action)
    with pytest.raises(DiscorlError, match="'y' has size 5, but the rule needs 6"):
        agent_with(AgentNet(MLPTorso(4, (4,)), 4, 3, other))


def test_a_network_without_heads_is_refused_and_told_what_to_use() -> None:
    with pytest.raises(DiscorlError, match="which heads it has") as e:
        agent_with(nn.Linear(4, 3))
    [name] = re.findall(r"discorl\.([\w.]+)\(", str(e.value))
    assert getattr(discorl, name) is AgentNet


# --- initial parameters --------------------------------------------------------------------------


def test_init_params_depend_on_the_generator_alone() -> None:
    net, _ = net_and_params(3)
    torch.manual_seed(1)
    global_state = torch.get_rng_state()
    first = init_params(net, rng(5))
    assert torch.equal(torch.get_rng_state(), global_state)
    torch.manual_seed(2)
    assert_bit_equal(first, init_params(net, rng(5)))
    other = init_params(net, rng(6))
    assert not torch.equal(first["flat_heads.y.weight"], other["flat_heads.y.weight"])


def test_init_params_leave_the_module_alone() -> None:
    net, _ = net_and_params(3)
    before = {k: p.detach().clone() for k, p in net.named_parameters()}
    init_params(net, rng(5))
    assert_bit_equal(dict(net.named_parameters()), before)
