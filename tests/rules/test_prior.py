"""Rules that add to a hand-written target: before they have learnt anything, they are that rule."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from discorl import tree
from discorl.agents.agent import Agent
from discorl.agents.update import update_agent
from discorl.errors import DiscorlError
from discorl.optim import scale_by_learning_rate
from discorl.rules import CMPO, DiscoRule
from discorl.rules.store import VERSION_WITH_PRIOR, load_rule, save_rule
from discorl.types import AgentState, Params
from tests.builders import (
    ABLATIONS,
    assert_bit_equal,
    disturbed,
    random_rollout,
    random_rule_params,
    rng,
    small_agent,
    small_disco_with_prior,
    small_disco_without,
    with_target_params,
)


def written_by_hand(rule: DiscoRule) -> CMPO:
    assert rule.prior is not None
    return CMPO(**vars(rule.prior), num_bins=11, max_abs_value=5.0, mask_episode_starts=True)


def living(agent: Agent, shared: AgentState | None = None) -> AgentState:
    """An agent whose target network differs; with the parameters that it shares with another."""
    state = agent.init_state(rng())
    params = disturbed(state.params, 0.3)
    targets = disturbed(params, 0.2, 5)
    if shared is not None:
        assert shared.rule.target_params is not None
        params = {k: shared.params[k] for k in params}
        targets = {k: shared.rule.target_params[k] for k in params}
    state = replace(state, params=params, optimiser=agent.optimiser.init(params))
    return with_target_params(state, targets)


def test_an_untaught_rule_is_its_prior_to_the_last_bit() -> None:
    """Equal targets and equal training. Predictions are their own targets, and stay."""
    rule = small_disco_with_prior()
    agent, plain = small_agent(rule), small_agent(written_by_hand(rule))
    params, state = rule.init_params(rng(1)), living(agent)
    by_hand = living(plain, state)
    before = state.params
    for step in range(4):
        rollout = random_rollout(seed=step)
        state, info = update_agent(agent, params, state, rollout)
        by_hand, plain_info = update_agent(plain, {}, by_hand, rollout)
        assert_bit_equal(info.targets.pi, plain_info.targets.pi)
        assert_bit_equal(info.targets.y, info.predictions.y)
        assert_bit_equal(info.targets.z, info.predictions.z_a)
        assert_bit_equal(by_hand.params, {k: state.params[k] for k in by_hand.params})
    alone = state.params.keys() - by_hand.params.keys()
    assert {name.split(".")[-2] for name in alone} and alone
    assert_bit_equal({k: before[k] for k in alone}, {k: state.params[k] for k in alone})


def targets_of(rule: DiscoRule, params: Params) -> torch.Tensor:
    agent = small_agent(rule)
    _, info = update_agent(agent, params, living(agent), random_rollout())
    return info.targets.pi


def test_the_network_adds_logits_and_scales_the_step() -> None:
    rule = small_disco_with_prior()
    params = rule.init_params(rng(1))
    start = targets_of(rule, params)
    stronger = params | {"prior_strength.bias": torch.tensor([0.5])}
    factor = torch.tensor(0.5).exp()
    assert rule.prior is not None
    scaled = replace(rule.prior, strength=rule.prior.strength * float(factor))
    torch.testing.assert_close(
        targets_of(rule, stronger), targets_of(replace(rule, prior=scaled), params)
    )
    spoken = random_rule_params(rule, seed=2)
    silent = spoken | {k: params[k] for k in params if k.startswith("policy_target")}
    assert (targets_of(rule, spoken) - targets_of(rule, silent)).abs().max() > 0.05
    assert (targets_of(rule, stronger) - start).abs().max() > 0.05


def test_the_network_learns_how_far_to_trust_returns() -> None:
    """Added to the prior's own trust, within 0 and 1."""
    rule = small_disco_with_prior()
    params = rule.init_params(rng(1))
    assert rule.prior is not None and rule.prior.trust == 0.75

    def trusting(more: float) -> torch.Tensor:
        return targets_of(rule, params | {"prior_trust.bias": torch.tensor([more])})

    for more, trust in ((0.0, 0.75), (-0.5, 0.25), (0.125, 0.875), (3.0, 1.0), (-2.0, 0.0)):
        given = replace(rule, prior=replace(rule.prior, trust=trust))
        torch.testing.assert_close(trusting(more), targets_of(given, params))
    assert (trusting(-0.5) - trusting(0.0)).abs().max() > 0.05


def test_the_meta_gradient_reaches_strength_and_trust() -> None:
    """Without Adam, whose denominator is a constant to the meta-gradient."""
    rule = small_disco_with_prior()
    params = {k: p.double().requires_grad_() for k, p in random_rule_params(rule).items()}
    agent = small_agent(rule, optimiser=scale_by_learning_rate(1e-2))
    state = tree.map(lambda x: x.double() if x.is_floating_point() else x, living(agent))
    rollout = tree.map(lambda x: x.double() if x.is_floating_point() else x, random_rollout())
    names = ("prior_strength.weight", "prior_trust.weight")

    def last(given: Params) -> torch.Tensor:
        new, _ = update_agent(agent, given, state, rollout, differentiable=True)
        return torch.stack([p.square().sum() for p in new.params.values()]).sum()

    for name, gradient in zip(
        names, torch.autograd.grad(last(params), [params[k] for k in names]), strict=True
    ):
        assert gradient.abs().max() > 0
        step = 1e-4 * torch.sign(gradient)
        ahead, behind = (last(params | {name: params[name] + s * step}) for s in (1, -1))
        torch.testing.assert_close((ahead - behind) / 2e-4, gradient.abs().sum(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", ABLATIONS)
def test_rules_that_lack_a_part_can_have_a_prior(name: str, tmp_path: Path) -> None:
    rule = replace(small_disco_without(*ABLATIONS[name]), prior=small_disco_with_prior().prior)
    params = random_rule_params(rule)
    save_rule(tmp_path / "rule.npz", rule, params, {})
    loaded = load_rule(tmp_path / "rule.npz")
    assert loaded.rule == rule
    assert_bit_equal(loaded.params, params)
    assert targets_of(loaded.rule, loaded.params).isfinite().all()


def comment(path: Path) -> dict:
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.comment)


def test_the_file_says_so_and_other_files_stay_as_they_were(tmp_path: Path) -> None:
    rule = small_disco_with_prior()
    save_rule(tmp_path / "prior.npz", rule, rule.init_params(rng()), {})
    said = comment(tmp_path / "prior.npz")
    assert said["discorl_rule"] == VERSION_WITH_PRIOR
    assert said["prior"] == {"strength": 1.5, "max_advantage": 0.7, "trust": 0.75}
    plain = replace(rule, prior=None)
    save_rule(tmp_path / "plain.npz", plain, plain.init_params(rng()), {})
    said = comment(tmp_path / "plain.npz")
    assert said["discorl_rule"] == 1 and "prior" not in said and "auxiliary" not in said


@pytest.mark.parametrize(
    "prior, says",
    [
        (None, "unknown arrays in the rule file: lstm/prior_strength"),
        ({"strength": -1.0}, "strength must be between 0"),
        ({"strength": "a lot"}, "strength is 'a lot'"),
        ({"speed": 1.0}, "no setting is called speed"),
        (3, "3 is not a group of settings"),
    ],
)
def test_a_damaged_prior_is_named(prior: object, says: str, tmp_path: Path) -> None:
    rule, path = small_disco_with_prior(), tmp_path / "rule.npz"
    save_rule(path, rule, rule.init_params(rng()), {})
    with zipfile.ZipFile(path, "a") as archive:
        settings = json.loads(archive.comment) | {"prior": prior}
        archive.comment = json.dumps(settings).encode()
    with pytest.raises(DiscorlError, match=says):
        load_rule(path)
