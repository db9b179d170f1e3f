"""Agents whose rule does not see an input, for rules that do not need it and rules that do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from discorl import tree
from discorl.agents.update import update_agent
from discorl.analysis import trials
from discorl.analysis.lives import Life
from discorl.analysis.results import NotApplicable
from discorl.analysis.retraining import (
    AS_IT_IS,
    PREFIX,
    Counterfactual,
    Retraining,
    retraining,
)
from discorl.analysis.trials import school_of, school_that_teaches, teach
from discorl.rules import CMPO
from discorl.types import Params
from tests.analysis.lives import blind_to_predictions, life_of
from tests.builders import (
    assert_bit_equal,
    random_rollout,
    random_rule_params,
    rng,
    small_agent,
    small_disco,
)

YZ_ZERO = f"{PREFIX}y and z.zero"


def updated(rule: object, params: Params, flags: dict[str, float] | None = None):
    """Two updates of the same agent by a rule."""
    agent = small_agent(rule)  # pyright: ignore[reportArgumentType]
    state, own = agent.init_state(rng()), dict(params)
    own |= {name: torch.tensor(value) for name, value in (flags or {}).items()}
    state, _ = update_agent(agent, own, state, random_rollout(seed=0))
    return update_agent(agent, own, state, random_rollout(seed=1))


def test_without_a_change_agents_learn_as_ever() -> None:
    rule = small_disco()
    params = random_rule_params(rule)
    plain, _ = updated(rule, params)
    same, _ = updated(Counterfactual(rule), params, {YZ_ZERO: 0.0})
    assert_bit_equal(plain, same)


def test_a_rule_that_ignores_y_and_z_does_not_miss_them() -> None:
    rule = small_disco()
    params = blind_to_predictions(rule, random_rule_params(rule))
    gate = "lifetime_gate.weight"  # the memory sees y and z as well
    params[gate] = torch.zeros_like(params[gate])
    _, plain = updated(rule, params)
    _, without = updated(Counterfactual(rule), params, {YZ_ZERO: 1.0})
    for name in ("pi", "y", "z"):
        assert torch.equal(getattr(plain.targets, name), getattr(without.targets, name))
    _, seeing = updated(rule, random_rule_params(rule))
    _, blind = updated(Counterfactual(rule), random_rule_params(rule), {YZ_ZERO: 1.0})
    assert not torch.equal(seeing.targets.z, blind.targets.z)


def test_own_targets_only() -> None:
    """With y and z gone for their own targets the first pi-hat is as ever, y-hat is not."""
    rule = small_disco()
    agent, params = small_agent(rule), random_rule_params(rule)
    state, rollout = agent.init_state(rng()), random_rollout()
    _, plain = update_agent(agent, params, state, rollout)
    own = replace(agent, rule=Counterfactual(rule, own_targets_only=True))
    after, info = update_agent(own, params | {YZ_ZERO: torch.ones(())}, state, rollout)
    assert torch.equal(plain.targets.pi, info.targets.pi)
    assert not torch.equal(plain.targets.y, info.targets.y)
    expected, _ = update_agent(agent, params, state, rollout)
    assert_bit_equal(after.rule, expected.rule)


@pytest.mark.parametrize("name", ["rewards", "values", "policies"])
def test_values_learn_from_true_rewards(name: str) -> None:
    rule = small_disco()
    agent, params = small_agent(rule), random_rule_params(rule)
    state, rollout = agent.init_state(rng()), random_rollout()
    _, plain = update_agent(agent, params, state, rollout)
    other = replace(agent, rule=Counterfactual(rule))
    for way in ("zero", "shuffled"):
        flag = {f"{PREFIX}{name}.{way}": torch.ones(())}
        _, info = update_agent(other, params | flag, state, rollout)
        assert torch.equal(plain.targets.values.q_target, info.targets.values.q_target)
        assert not torch.equal(plain.targets.pi, info.targets.pi)


def test_side_by_side_each_agent_has_its_own_change() -> None:
    rule = small_disco()
    agent, params = small_agent(Counterfactual(rule)), random_rule_params(rule)
    states = [agent.init_state(rng(i)) for i in range(2)]
    rollouts = [random_rollout(seed=i) for i in range(2)]
    flags = [params | {YZ_ZERO: torch.tensor(float(i))} for i in range(2)]
    stacked = tree.stack(flags), tree.stack(states), tree.stack(rollouts)
    together, _ = update_agent(agent, *stacked, each=tree.vmap)
    for i in range(2):
        alone, _ = update_agent(agent, flags[i], states[i], rollouts[i])
        for a, b in zip(tree.leaves(alone), tree.leaves(tree.index(together, i)), strict=True):
            assert torch.allclose(a, b, atol=1e-5)


def bandit() -> Life:
    """Trained by a rule written by hand, which needs rewards."""
    life = life_of(CMPO(num_bins=21, max_abs_value=5.0, strength=2.0, trust=1.0))
    return replace(life, config=replace(life.config, task="bandit:2", steps=16))


@pytest.fixture(scope="module")
def by_hand() -> Retraining:
    return retraining([bandit()])


def test_without_rewards_nothing_is_learnt(by_hand: Retraining) -> None:
    as_it_is, costs = by_hand.outcome(AS_IT_IS), by_hand.costs()
    assert as_it_is is not None and as_it_is.gain.low is not None and as_it_is.gain.low > 0
    for way in ("zero", "shuffled"):
        cost = costs[f"rewards {way}"]
        assert cost.value < -0.5 * as_it_is.gain.value
    assert "not clearly lower with" in by_hand.findings()[-1]


def test_the_same_agents_begin_under_every_change(by_hand: Retraining) -> None:
    life = bandit()
    (same,) = teach(school_of(life), Counterfactual(life.agent.rule), {"same": {}})
    assert same.by_agent == by_hand.outcomes[0].by_agent


def test_every_input_that_there_is(by_hand: Retraining) -> None:
    names = [o.variant for o in by_hand.outcomes]
    ways = ("zero", "shuffled")
    inputs = [f"{x} {way}" for x in ("values", "rewards", "policies") for way in ways]
    assert names == [AS_IT_IS, *inputs, "actor-critic"], "cmpo is not compared with itself"
    assert [f.name for f in by_hand.figures()] == ["zero", "shuffled", "controls", "cost"]
    assert len(by_hand.outcomes[0].by_agent) == 3


def test_slow_rules_have_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that teaches nothing in two updates is given as many as its agents had."""
    life = bandit()
    assert not school_that_teaches(life, "as it is")[0].is_long
    monkeypatch.setattr(trials, "MAX_UPDATES", 2)
    school, outcome = school_that_teaches(life, "as it is")
    assert school.is_long and school.num_updates == 16 * life.config.updates_per_step
    assert school.settings.net.zero_values and trials.learns(outcome)
    life = replace(life, config=replace(life.config, steps=2))
    with pytest.raises(NotApplicable, match="learn too little of a task"):
        school_that_teaches(life, "as it is")


def test_a_task_that_is_not_learnt_is_not_judged_by() -> None:
    with pytest.raises(NotApplicable, match="learn too little of"):
        retraining([life_of(small_disco())])


def test_large_networks_are_refused() -> None:
    life = life_of(small_disco())
    with pytest.raises(NotApplicable, match="choose a smaller task"):
        retraining([replace(life, config=replace(life.config, task="ale:Pong"))])
