"""What disco-torch's users write: all that docs/own_agent.md claims, and what errors say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import discorl
from discorl.errors import DiscorlError
from discorl.own_agent.disco_torch import HYPER_PARAMS
from discorl.rules import ActorCritic
from discorl.rules.disco import DiscoSettings
from tests.builders import assert_bit_equal, write_small_rule
from tests.own_agent.own_agents import Corridor, PlainAgent, small_rule
from tests.own_agent.test_resume import plain_agent, the_same


def collect(agent: Any, *args: Any, **kwargs: Any) -> Any:
    env = Corridor()
    given = {} if args else {"rollout_len": 5}
    generator = torch.Generator().manual_seed(0)
    return discorl.collect_rollout(
        agent, env.step_fn, env.obs(), *args, **given, generator=generator, **kwargs
    )


def test_weights_path_is_a_rule_file(tmp_path: Path) -> None:
    path = write_small_rule(tmp_path / "rule.npz")
    loaded = discorl.load_rule(path)
    agent = PlainAgent(loaded.rule.heads(3))
    for given in (path, str(path)):
        trainer = discorl.DiscoTrainer(agent, weights_path=given)
        assert_bit_equal(trainer.rule.params, loaded.params)
    with pytest.raises(DiscorlError, match="rule and weights_path are the same thing"):
        discorl.DiscoTrainer(agent, weights_path=path, rule="disco-mini")


def test_hyper_params_are_settings_of_the_rule() -> None:
    assert len(HYPER_PARAMS) == 7
    theirs = {
        "value_fn_td_lambda": 0.8,
        "target_params_coeff": 0.75,
        "pi_cost": 2.0,
        "y_cost": 3.0,
        "z_cost": 4.0,
        "aux_policy_cost": 5.0,
        "value_cost": 6.0,
    }
    agent = the_same(plain_agent)
    rule: Any = discorl.DiscoTrainer(agent, rule=small_rule(), hyper_params=theirs).rule.rule
    assert rule.returns.lambda_ == 0.8
    assert rule.settings == DiscoSettings(2.0, 3.0, 4.0, 5.0, 6.0, target_rate=0.25)
    before: Any = small_rule().rule
    some: Any = discorl.DiscoTrainer(agent, rule=small_rule(), hyper_params={"z_cost": 0.5}).rule
    assert some.rule == replace(before, settings=replace(before.settings, z_cost=0.5))
    for wrong, words in {
        "q_cost": r"hyper_params has no 'q_cost': use value_fn_td_lambda, .*value_cost",
        "discount": r"discount= for the discount",
    }.items():
        with pytest.raises(DiscorlError, match=words):
            discorl.DiscoTrainer(agent, rule=small_rule(), hyper_params={wrong: 1.0})
    with pytest.raises(DiscorlError, match="for discovered rules, not for ActorCritic"):
        discorl.DiscoTrainer(agent, rule=ActorCritic(), hyper_params={"pi_cost": 1.0})
    with pytest.raises(DiscorlError, match="target_rate"):
        discorl.DiscoTrainer(agent, rule=small_rule(), hyper_params={"target_params_coeff": 2.0})


def test_the_discount_is_one_argument() -> None:
    agent = the_same(plain_agent)
    given = small_rule()
    trainer = discorl.DiscoTrainer(agent, rule=given, discount=0.9)
    assert trainer.rule.rule.returns == replace(given.rule.returns, discount=0.9)
    assert given.rule.returns.discount != 0.9, "the user's own rule stays as it is"
    with pytest.raises(DiscorlError, match="discount"):
        discorl.DiscoTrainer(agent, rule=small_rule(), discount=1.5)


def test_collect_rollout_as_they_call_it() -> None:
    agent = the_same(plain_agent)
    device = torch.device("cpu")
    expected, _, _ = collect(agent)
    for rollout, _, _ in (
        collect(agent, None, 5, device, 0.997),
        collect(agent, lstm_state=None, device=device, discount=0.997),
    ):
        assert_bit_equal(expected, rollout)
    with pytest.raises(DiscorlError, match=r"write DiscoTrainer\(agent, discount=0.99\)"):
        collect(agent, discount=0.99)


def test_rollouts_are_read_like_dicts() -> None:
    rollout, _, _ = collect(the_same(plain_agent))
    assert rollout["rewards"].shape == rollout["discounts"].shape == (5, 2)
    assert rollout["observations"].shape == (6, 2, 4) and rollout["actions"].shape == (6, 2)
    assert torch.equal(rollout["rewards"], rollout.rewards[1:])
    assert torch.equal(rollout["discounts"] == 0, rollout.is_terminal)
    with pytest.raises(DiscorlError, match=r"the logits are rollout.behaviour_logits"):
        rollout["agent_out"]
    with pytest.raises(DiscorlError, match=r"not 'reward'"):
        rollout["reward"]
    with pytest.raises(DiscorlError, match=r"dataclasses.replace\(rollout, rewards=...\)"):
        rollout["rewards"] = rollout["rewards"] * 0.1


def test_a_rollout_may_be_their_dict() -> None:
    agent = the_same(plain_agent)
    rollout, _, _ = collect(agent)
    theirs: dict[str, Any] = {key: rollout[key] for key in ("observations", "actions", "rewards")}
    theirs["discounts"] = 0.997 * rollout["discounts"]
    theirs["agent_out"] = {"logits": rollout.behaviour_logits, "y": torch.zeros(6, 2, 1)}
    given = {"rule": small_rule(), "replay_capacity": 2, "batch_size": 2}
    logs = [discorl.DiscoTrainer(the_same(plain_agent), **given).step(r) for r in (rollout, theirs)]
    assert logs[0] == logs[1] and logs[0]["grad_steps"] == 1
    trainer = discorl.DiscoTrainer(agent, **given)
    for key, words in {"rewards": "needs rewards", "agent_out": "needs agent_out"}.items():
        with pytest.raises(DiscorlError, match=words):
            trainer.step({k: x for k, x in theirs.items() if k != key})


def test_without_a_network_the_rule_that_ships_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from discorl.rules import store

    def fail(*args: Any) -> None:
        raise DiscorlError("there is no network")

    monkeypatch.delenv("DISCORL_DISCO103", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(store, "download", fail)
    with pytest.raises(DiscorlError, match=r'no network.*rule="disco-mini" in Python'):
        discorl.DiscoTrainer(the_same(plain_agent))
