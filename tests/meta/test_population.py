"""A group of agents: acting, lifetimes, replay, and independence of each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from discorl import tree
from discorl.meta.meta_step import live_window
from discorl.meta.population import FOR_EVER, Lifetimes, init_group, reborn
from discorl.meta.population_acting import PopulationRollouts, act_in_group
from discorl.meta.window import MemoryMode
from tests.builders import assert_bit_equal, clone, rng
from tests.meta.population import tiny_config, tiny_groups


def test_budgets_are_drawn_in_proportion_to_their_inverse() -> None:
    drawn = Lifetimes((10, 20, 40)).draw(70_000, rng())
    share = [float((drawn == n).float().mean()) for n in (10, 20, 40)]
    assert share == pytest.approx([4 / 7, 2 / 7, 1 / 7], abs=0.01)


def test_without_budgets_agents_live_for_ever() -> None:
    assert Lifetimes().draw(2, rng()).tolist() == [FOR_EVER, FOR_EVER]


def test_each_agent_has_a_learning_rate_of_its_own() -> None:
    config = tiny_config(tasks=("catch:4x4*400",), learning_rate=1e-2, learning_rate_spread=16.0)
    [group], _ = tiny_groups(config)
    state = init_group(group, rng())
    factor = state.agents.optimiser[-1].factor
    logs = factor.log2()
    assert float(logs.min()) >= -2 and float(logs.max()) <= 2
    assert float(logs.mean()) == pytest.approx(0, abs=0.2)
    assert float(logs.std()) == pytest.approx(4 / 12**0.5, abs=0.1)
    due = torch.arange(400) < 100
    after = reborn(group, state, due, rng(1)).agents.optimiser[-1].factor
    assert torch.equal(after[~due], factor[~due]) and not (after == factor)[due].any()


@pytest.mark.parametrize("memory", ["plain", "recompute"])
def test_an_agent_learns_at_its_own_rate(memory: MemoryMode) -> None:
    """As in a population of one rate, that one."""
    config = tiny_config(tasks=("catch:4x4*1",), memory=memory, learning_rate=1e-2)
    [group], params = tiny_groups(replace(config, learning_rate_spread=2.0))
    state = init_group(group, rng())
    rate = 1e-2 * float(state.agents.optimiser[-1].factor)
    assert rate != 1e-2
    [same], _ = tiny_groups(replace(config, learning_rate=rate))
    plain = replace(state.agents, optimiser=state.agents.optimiser[0])
    got = live_window(group, params, state, rng(1))
    expected = live_window(same, params, replace(state, agents=plain), rng(1))
    tree.map(torch.testing.assert_close, got.state.agents.params, expected.state.agents.params)
    tree.map(torch.testing.assert_close, got.gradient, expected.gradient)


def test_rollouts_go_on_where_they_stopped_and_agents_come_first() -> None:
    [group, _], _ = tiny_groups(tiny_config())
    state = init_group(group, rng())
    rollout, after, episodes = act_in_group(group, state.agents.params, state, 7, rng(1))
    assert rollout.observations.shape == (2, 7, 3, 4, 4)
    assert rollout.behaviour_logits.shape == (2, 7, 3, 3)
    first = state.timestep.observation.unflatten(0, (2, 3))
    assert torch.equal(rollout.observations[:, 0], first)
    again, _, _ = act_in_group(group, state.agents.params, after, 2, rng(2))
    following = after.timestep.observation.unflatten(0, (2, 3))
    assert torch.equal(again.observations[:, 0], following)
    # Catch on 4 rows: episodes of 3 steps, so 7 time steps (6 actions) end two in each copy.
    assert episodes.count.tolist() == [6, 6]
    caught = (rollout.rewards > 0).sum((1, 2))
    assert episodes.successes.tolist() == caught.tolist()
    assert episodes.returns.tolist() == rollout.rewards.sum((1, 2)).tolist()


@pytest.mark.parametrize("acts_ahead", [False, True])
def test_validation_rollouts_of_a_copy_follow_each_other(acts_ahead: bool) -> None:
    [group, _], _ = tiny_groups(tiny_config(valid_rollouts=2, acts_ahead=acts_ahead))
    state = init_group(group, rng())
    source = PopulationRollouts(group, rng(1))
    acting = source.begin(state)
    for _ in range(2):
        _, acting = source.collect(acting, state.agents)
    judged_on, _ = source.collect_validation(acting, state.agents)
    assert judged_on.observations.shape == (2, 6, 2 * 3, 4, 4)
    rollouts = [act_in_group(group, state.agents.params, state, 5, generator := rng(1))]
    for length in (5, 6, 6):
        rollouts.append(
            act_in_group(group, state.agents.params, rollouts[-1][1], length, generator)
        )
    for first, (expected, _, _) in zip((0, 3), rollouts[2:], strict=True):
        assert_bit_equal(tree.index(judged_on, np.s_[:, :, first : first + 3]), expected)


def test_logits_are_those_of_each_agent() -> None:
    [group, _], _ = tiny_groups(tiny_config())
    state = init_group(group, rng())
    rollout, _, _ = act_in_group(group, state.agents.params, state, 4, rng(1))
    for i in range(2):
        params = tree.index(state.agents.params, i)
        seen = rollout.observations[i].flatten(0, 1)
        alone = torch.func.functional_call(group.window.agent.net, params, (seen,)).logits  # pyright: ignore
        torch.testing.assert_close(rollout.behaviour_logits[i].flatten(0, 1), alone)


def test_agents_that_are_due_start_anew_and_the_others_do_not_notice() -> None:
    [group, _], _ = tiny_groups(tiny_config(replay_capacity=6, num_replayed=2))
    state = init_group(group, rng())
    _, state, _ = act_in_group(group, state.agents.params, state, 3, rng(1))
    assert state.replay is not None
    replay = replace(state.replay, size=torch.tensor([4, 4]))
    state = replace(state, age=torch.tensor([5, 9]), replay=replay)
    after = reborn(group, state, torch.tensor([False, True]), rng(2))
    assert_bit_equal(tree.index(after.agents, 0), tree.index(state.agents, 0))
    assert_bit_equal(
        tree.index(after.env_state, slice(0, 3)), tree.index(state.env_state, slice(3))
    )
    weight = "torso.mlp.layers.0.weight"
    assert not torch.equal(after.agents.params[weight][1], state.agents.params[weight][1])
    assert after.age.tolist() == [5, 0]
    assert after.replay is not None and after.replay.size.tolist() == [4, 0]
    assert bool((after.env_state.ball_row[3:] == 0).all())


def test_an_agent_that_blew_up_is_born_again() -> None:
    [group, _], params = tiny_groups(tiny_config())
    state = init_group(group, rng())
    broken = {
        k: torch.cat([p[:1], torch.full_like(p[1:], float("nan"))])
        for k, p in state.agents.params.items()
    }
    state = replace(state, agents=replace(state.agents, params=broken))
    result = live_window(group, params, state, rng(1))
    assert result.num_born == 1
    assert tree.is_finite(result.state.agents)
    assert result.state.age.tolist() == [2, 0]


def test_a_window_changes_nothing_but_the_replay_and_repeats() -> None:
    [group, _], params = tiny_groups(tiny_config(replay_capacity=6, num_replayed=2))
    state = init_group(group, rng())
    before = clone(state)
    first = live_window(group, params, state, rng(5))
    assert_bit_equal(replace(state, replay=None), replace(before, replay=None))
    second = live_window(group, params, before, rng(5))
    assert_bit_equal(first.state, second.state)
    assert_bit_equal(first.gradient, second.gradient)


@pytest.mark.parametrize("acts_ahead, mode", [(False, "recompute"), (True, "mixed")])
def test_memory_modes_agree_while_agents_act(acts_ahead: bool, mode: MemoryMode) -> None:
    config = tiny_config(acts_ahead=acts_ahead, num_updates=3)
    [group, _], params = tiny_groups(config)
    state = init_group(group, rng())
    plain = live_window(group, params, state, rng(5))
    settings = replace(group.settings, memory=mode)
    other = live_window(replace(group, settings=settings), params, state, rng(5))
    assert_bit_equal(plain.state.agents.params, other.state.agents.params)
    for name, want in plain.gradient.items():
        torch.testing.assert_close(other.gradient[name], want, rtol=1e-3, atol=1e-6)


def test_acting_ahead_uses_the_policy_from_before_the_window() -> None:
    config = tiny_config(acts_ahead=True)
    [group, _], params = tiny_groups(config)
    state = init_group(group, rng())
    result = live_window(group, params, state, rng(5))
    # Both training rollouts and the longer validation rollout: 5 + 5 + 6 steps, 3 copies.
    assert result.episodes.count.tolist() == [15, 15]
