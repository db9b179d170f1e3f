"""Discovery of rules that add to a hand-written target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from discorl import tree
from discorl.cli import main
from discorl.discovery.build import starting_rule
from discorl.discovery.config import DiscoverConfig, RuleConfig
from discorl.discovery.discover import discover, resume_discovery
from discorl.errors import DiscorlError
from discorl.meta.meta_step import live_window
from discorl.meta.population import init_group
from discorl.rules.improvement import STRONG
from discorl.rules.store import load_rule
from discorl.training.presets import for_run
from discorl.training.train import train
from tests.builders import assert_bit_equal, rng, write_small_rule
from tests.meta.population import tiny_config, tiny_groups


def config_with_prior(**changes: Any) -> DiscoverConfig:
    config = tiny_config(**changes)
    return replace(config, rule=replace(config.rule, prior=True))


def test_is_discovered_resumed_fine_tuned_and_trains_agents(tmp_path: Path) -> None:
    whole = discover(config_with_prior(out=tmp_path / "whole"))
    discover(config_with_prior(out=tmp_path / "cut", steps=2))
    assert_bit_equal(whole.params, resume_discovery(tmp_path / "cut", steps=4).params)
    path = tmp_path / "cut" / "rule.npz"
    loaded = load_rule(path)
    assert loaded.rule.prior == STRONG
    learnt = ("policy_target.weight", "prior_strength.weight", "y_target.weight")
    assert all(loaded.params[name].any() for name in learnt)
    assert starting_rule(tiny_config(init=str(path)))[0].prior == STRONG

    config = replace(for_run("catch", str(path)), num_envs=3, steps=2, batch_size=3)
    config = replace(config, replay_capacity=9, device="cpu", progress="none", out=tmp_path / "run")
    assert train(config).folder.is_dir()


@pytest.mark.parametrize("memory", ["plain", "recompute", "mixed"])
def test_agents_side_by_side_and_one_by_one_agree(memory: Any) -> None:
    [group, _], params = tiny_groups(config_with_prior(memory=memory))
    params = {k: p + 0.1 * torch.randn(p.shape, generator=rng(3)) for k, p in params.items()}
    state = init_group(group, rng())
    together, apart = (
        live_window(replace(group, window=replace(group.window, each=each)), params, state, rng(1))
        for each in (tree.vmap, tree.one_by_one)
    )
    for name, g in together.gradient.items():
        torch.testing.assert_close(g, apart.gradient[name], rtol=1e-3, atol=1e-6)
    assert together.gradient["prior_strength.weight"].any()


def test_the_option_reaches_the_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a user writes it; the preset's warm start would only spoil what is there already."""
    tiny = "--tasks catch:4x4*2/8 --steps 1 --window.num-envs 2 --window.num-updates 1"
    args = ["discover", "suite", *tiny.split(), "--held-out", "--progress", "none", "--rule.prior"]
    assert main([*args, "--out", str(tmp_path / "run")]) == 0
    path = str(tmp_path / "run" / "rule.npz")
    assert main(["rules", "verify", path]) == 0
    assert main(["rules", "show", path]) == 0
    assert "  prior       strength=" in capsys.readouterr().out


def test_a_prior_needs_no_warm_start_unless_one_is_asked_for() -> None:
    prior = RuleConfig(prior=True)
    assert DiscoverConfig(warm_start=None, rule=prior).num_imitations == 0
    assert DiscoverConfig(warm_start=3, rule=prior).num_imitations == 3


def test_a_rule_without_one_cannot_be_given_one(tmp_path: Path) -> None:
    path = str(write_small_rule(tmp_path / "rule.npz"))
    with pytest.raises(DiscorlError, match=r"--rule\.prior: the rule .* has no prior"):
        starting_rule(config_with_prior(init=path))
