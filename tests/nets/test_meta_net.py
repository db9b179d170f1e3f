from __future__ import annotations

import pytest
import torch
from torch import Tensor

from discorl import tree
from discorl.agents.update import update_agent
from discorl.nets.meta_net import ActionBlocks, MetaNetSizes
from discorl.types import AgentState, DiscoTargets, Params, Rollout
from tests.builders import (
    DEEP_SIZES,
    SMALL_SIZES,
    disturbed,
    double,
    random_rollout,
    random_rule_params,
    rng,
    small_agent,
    small_disco,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64)


def naive_blocks(blocks: ActionBlocks, x: Tensor) -> Tensor:
    """relu(Linear(concat(x, mean of x over actions))), as the reference writes it."""
    for layer in blocks.layers:
        mean = x.mean(-2, keepdim=True).expand_as(x)
        x = torch.relu(layer(torch.cat([x, mean], -1)))
    return x


@pytest.mark.parametrize("num_actions", [1, 2, 5])
def test_action_blocks_are_the_naive_formula(num_actions: int) -> None:
    blocks = ActionBlocks(3, (4, 2)).double()
    x = normal(6, 2, num_actions, 3)
    torch.testing.assert_close(blocks(x), naive_blocks(blocks, x))


@pytest.mark.parametrize("channels", [(4,), (4, 2)])
def test_what_all_actions_share_stands_before_their_own(channels: tuple[int, ...]) -> None:
    blocks = ActionBlocks(5 + 3, channels).double()
    x, common = normal(6, 2, 4, 3), normal(6, 2, 5, seed=1)
    both = torch.cat([common.unsqueeze(-2).expand(6, 2, 4, 5), x], -1)
    torch.testing.assert_close(blocks(x, common=common), naive_blocks(blocks, both))


@pytest.mark.parametrize("num_actions", [1, 2, 7])
@pytest.mark.parametrize("sizes", [SMALL_SIZES, DEEP_SIZES], ids=["small", "deep"])
def test_targets_of_any_size(sizes: MetaNetSizes, num_actions: int) -> None:
    rule = small_disco(sizes)
    agent = small_agent(rule, num_actions)
    rollout = random_rollout(num_actions=num_actions)
    state, info = update_agent(agent, random_rule_params(rule), agent.init_state(rng()), rollout)
    targets = info.targets
    num_steps, batch = rollout.actions.shape
    assert targets.pi is not None
    assert targets.y is not None
    assert targets.z is not None
    assert targets.pi.shape == (num_steps - 1, batch, num_actions)
    assert targets.y.shape == targets.z.shape == (num_steps - 1, batch, sizes.prediction)
    assert state.rule.lifetime_rnn is not None
    assert state.rule.lifetime_rnn.hidden.shape == (sizes.lifetime_hidden,)
    assert state.rule.lifetime_rnn.hidden.any()


def permuted_agent(params: Params, order: Tensor) -> Params:
    """The same agent with its actions numbered in another order: new action i is old order[i]."""
    new = dict(params)
    for name in ("flat_heads.logits", "action_model.heads.aux_pi.layers.1"):
        new |= {f"{name}.{leaf}": params[f"{name}.{leaf}"][order] for leaf in ("weight", "bias")}
    gates = params["action_model.lstm.gates.weight"]
    inputs = gates[:, : len(order)][:, order]
    new["action_model.lstm.gates.weight"] = torch.cat([inputs, gates[:, len(order) :]], 1)
    return new


def permuted_rollout(rollout: Rollout, order: Tensor) -> Rollout:
    return Rollout(
        rollout.observations,
        order.argsort()[rollout.actions],
        rollout.rewards,
        rollout.discounts,
        rollout.behaviour_logits[..., order],
    )


def test_targets_do_not_depend_on_the_numbering_of_actions() -> None:
    """pi-hat is permuted with the actions; y-hat, z-hat and the lifetime LSTM stay as they are."""
    rule = small_disco()
    agent = small_agent(rule, num_actions=4)
    order = torch.tensor([2, 0, 3, 1])
    rollout = double(random_rollout(num_actions=4))
    rule_params = double(random_rule_params(rule))
    params = double(disturbed(agent.init_state(rng()).params, 0.3))

    def targets_of(params: Params, rollout: Rollout) -> tuple[DiscoTargets, AgentState]:
        state = AgentState(params, agent.optimiser.init(params), rule.init_state(params))
        state, info = update_agent(agent, rule_params, state, rollout)
        return info.targets, state

    plain, plain_state = targets_of(params, rollout)
    permuted, permuted_state = targets_of(
        permuted_agent(params, order), permuted_rollout(rollout, order)
    )
    assert plain.pi is not None
    assert permuted.pi is not None
    torch.testing.assert_close(permuted.pi, plain.pi[..., order])
    assert not torch.allclose(permuted.pi, plain.pi)
    torch.testing.assert_close(permuted.y, plain.y)
    torch.testing.assert_close(permuted.z, plain.z)
    for a, b in zip(
        tree.leaves(plain_state.rule.lifetime_rnn),
        tree.leaves(permuted_state.rule.lifetime_rnn),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_returns_look_ahead_in_their_own_trajectory() -> None:
    """A reward changes the targets of the steps before it, not of those after nor of others."""
    rule = small_disco()
    agent = small_agent(rule)
    rollout = random_rollout(num_steps=6, batch=2)
    rollout = Rollout(
        rollout.observations,
        rollout.actions,
        rollout.rewards,
        torch.ones_like(rollout.discounts),
        rollout.behaviour_logits,
    )
    rule_params, state = random_rule_params(rule), agent.init_state(rng())
    changed_rewards = rollout.rewards.clone()
    changed_rewards[3, 0] += 1.0
    changed = Rollout(
        rollout.observations,
        rollout.actions,
        changed_rewards,
        rollout.discounts,
        rollout.behaviour_logits,
    )
    q_targets = []
    for r in (rollout, changed):
        _, info = update_agent(agent, rule_params, state, r)
        q_targets.append(info.targets.values.q_target)
    first, second = q_targets
    assert (first != second).tolist() == [[True, False]] * 3 + [[False, False]] * 2
