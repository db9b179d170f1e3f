"""Values that begin where the first rollout suggests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from discorl import tree
from discorl.agents.agent import Agent
from discorl.agents.first_values import begin_values_at, mean_value
from discorl.agents.network import with_params
from discorl.meta import trial
from discorl.meta.trial import final_score, run_trial
from discorl.rules.values import ValueHead
from discorl.training import train as training
from discorl.training.config import EnvConfig, NetConfig, TrainConfig
from discorl.training.train import train
from discorl.types import AgentState, Params, Rollout
from tests.builders import RULES, random_rollout, rng, small_agent
from tests.meta.test_trial import small_catch

WITH_VALUES = ("disco", "prior", "cmpo", "actor-critic")


def rollout_of(rewards: list[float], discounts: list[float], dead: list[bool]) -> Rollout:
    """One trajectory; the first reward and discount belong to what came before it."""
    rollout = random_rollout(len(rewards), 1)
    of_steps = (torch.tensor(x).unsqueeze(1) for x in (rewards, discounts, dead))
    rewards_t, discounts_t, dead_t = of_steps
    is_dead = dead_t if any(dead) else None
    return replace(rollout, rewards=rewards_t, discounts=discounts_t, is_dead=is_dead)


def test_what_a_state_is_worth_if_all_are_alike() -> None:
    no_ends = rollout_of([5.0, -1.0, -1.0, -1.0], [1.0, 1.0, 1.0, 1.0], [False] * 4)
    assert float(mean_value(no_ends, 0.99)) == pytest.approx(-100, rel=1e-4)
    # 2 for each step, and every second step is the last: 2 / (1 - 0.9 / 2).
    ends = rollout_of([0.0, 2.0, 2.0, 2.0, 2.0], [1.0, 0.0, 1.0, 0.0, 1.0], [False] * 5)
    assert float(mean_value(ends, 0.9)) == pytest.approx(2 / 0.55, rel=1e-5)


def test_steps_that_only_reset_do_not_count() -> None:
    short = rollout_of([0.0, 2.0, 4.0], [1.0, 1.0, 1.0], [False] * 3)
    longer = rollout_of([0.0, 2.0, 4.0, 9.0], [1.0, 1.0, 1.0, 1.0], [False, False, True, False])
    assert torch.equal(mean_value(longer, 0.9), mean_value(short, 0.9))
    assert float(mean_value(short, 0.9)) == pytest.approx(30, rel=1e-5)


def values_of(agent: Agent, params: Params) -> Tensor:
    """Of some states, averaged over the policy if there are values of actions."""
    seen = random_rollout(2, 9, seed=4).observations[0]
    output = with_params(agent.net, params, lambda net: net.output(seen))
    value = agent.rule.state_value(output)
    assert value is not None
    return value


@pytest.mark.parametrize("name", WITH_VALUES)
@pytest.mark.parametrize("value", [-4.0, 0.0, 0.3, 3.0])
def test_every_state_has_the_value(name: str, value: float) -> None:
    agent = small_agent(RULES[name]())
    born = agent.init_state(rng(), torch.device("cpu"))
    state = begin_values_at(torch.tensor(value), agent, born)
    every = [state.params]
    if state.rule.target_params is not None:
        every.append(state.rule.target_params)
    for params in every:
        got = values_of(agent, params)
        torch.testing.assert_close(got, torch.full_like(got, value), atol=0.15, rtol=0.05)
    changed = {k for k, p in state.params.items() if not torch.equal(p, born.params[k])}
    layer = agent.net.value_layer  # pyright: ignore[reportAttributeAccessIssue]
    assert changed <= {f"{layer}.weight", f"{layer}.bias"}


def test_agents_without_values_stay_as_they_are() -> None:
    for name in ("no-value", "policy-gradient"):
        agent = small_agent(RULES[name]())
        state = agent.init_state(rng(), torch.device("cpu"))
        assert begin_values_at(torch.tensor(3.0), agent, state) is state


def test_side_by_side_each_agent_has_its_own() -> None:
    agent = small_agent(RULES["cmpo"]())
    born = [agent.init_state(rng(i), torch.device("cpu")) for i in range(2)]
    both: AgentState = tree.stack(born)
    together = begin_values_at(torch.tensor([-3.0, 2.0]), agent, both)
    for i, value in enumerate((-3.0, 2.0)):
        alone = begin_values_at(torch.tensor(value), agent, born[i])
        pairs = zip(tree.leaves(tree.index(together, i)), tree.leaves(alone), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    "head", [ValueHead(601, 300.0), ValueHead(81, 20.0), ValueHead(41, 2.0), ValueHead(None)]
)
def test_outputs_have_the_value_that_was_asked_for(head: ValueHead) -> None:
    value = torch.tensor([-100.0, -1.0, 0.0, 0.5, 40.0])
    if head.num_bins == 41:  # near the ends, which 0.9 of the bins reach
        value = torch.tensor([-4.0, -1.0, 0.0, 0.5, 3.9])
    output = head.output_of(value)
    assert output.shape == (5, head.size)
    torch.testing.assert_close(head.value(output), value, rtol=0.02, atol=0.02)
    if head.num_bins:  # no bin is so unlikely that a value could not get there soon
        assert float(torch.softmax(output, -1).min()) >= 0.09 / head.num_bins


def test_values_beyond_the_bins_begin_at_the_last_of_them() -> None:
    head = ValueHead(11, 5.0)
    far = head.output_of(torch.tensor([1e6, -1e6]))
    assert far.isfinite().all()
    assert far[0].argmax() == 10 and far[1].argmax() == 0


def config(out: Path, **changes: object) -> TrainConfig:
    net = NetConfig(torso=(8,), action_lstm=4, head_hidden=(4,))
    base = TrainConfig(
        *("gym:MountainCar-v0", "cmpo"),
        **{"num_envs": 2, "rollout_length": 6, "batch_size": 4, "replay_capacity": 8},
        **{"steps": 3, "net": net, "progress": "none", "out": out, "log_every": 1, "device": "cpu"},
    )
    return replace(base, **changes)


def test_in_training_values_begin_at_the_first_updates(tmp_path: Path) -> None:
    """Every step costs 1, so values begin at -1 / (1 - discount); two rollouts make a batch."""
    result = train(config(tmp_path / "estimated", estimate_values=True))
    plain = train(config(tmp_path / "plain"))
    first = next(row for row in result.metrics if "rule/q_value" in row)
    assert first["step"] == 2
    assert first["rule/q_value"] == pytest.approx(-1 / (1 - 0.997), rel=0.05)
    before = next(row for row in plain.metrics if "rule/q_value" in row)
    assert abs(before["rule/q_value"]) < 100


def test_all_first_rollouts_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rollouts of two copies make the first batch."""
    seen: list[Rollout] = []

    def noted(rollout: Rollout, *rest: Any) -> Tensor:
        seen.append(rollout)
        return mean_value(rollout, *rest)

    monkeypatch.setattr(training, "mean_value", noted)
    train(config(tmp_path / "run", estimate_values=True))
    (rollout,) = seen
    assert rollout.actions.shape[1] == 4
    assert (rollout.rewards[1:] == -1).all()


def test_on_trial_too(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Tensor] = []

    def noted(value: Tensor, *rest: Any) -> AgentState:
        begun.append(value)
        return begin_values_at(value, *rest)

    monkeypatch.setattr(trial, "begin_values_at", noted)
    curve = run_trial(small_catch(num_fresh=16, estimates_values=True), {}, 80, rng())
    (values,) = begun  # an episode takes three steps, and few catch the ball
    assert values.shape == (3,) and values.abs().max() < 1
    assert final_score(curve) > 0.7


def test_no_end_in_sight_is_no_infinity() -> None:
    endless = rollout_of([0.0, 1.0, 1.0], [1.0, 1.0, 1.0], [False] * 3)
    assert float(mean_value(endless, 1.0)) == pytest.approx(10_000)


def test_a_clip_of_rewards_counts(tmp_path: Path) -> None:
    env = EnvConfig(reward_scale=0.1)
    result = train(config(tmp_path / "run", estimate_values=True, env=env))
    first = next(row for row in result.metrics if "rule/q_value" in row)
    assert first["rule/q_value"] == pytest.approx(-0.1 / (1 - 0.997), rel=0.05)
