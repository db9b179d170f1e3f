"""Discovery by evolution strategies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from discorl.discovery.build import starting_rule
from discorl.discovery.config import DiscoverConfig
from discorl.discovery.discover import discover, resume_discovery
from discorl.discovery.trials import make_trial, rule_settings
from discorl.errors import DiscorlError
from discorl.meta.evolution import EvolutionSettings, live_pairs, signed_ranks
from discorl.meta.meta_step import WindowResult
from discorl.meta.population import Lifetimes, init_group
from discorl.types import Params
from tests.builders import assert_bit_equal, rng
from tests.discovery.test_prior import config_with_prior


def evolving(**changes: Any) -> DiscoverConfig:
    tasks = ("catch:4x4*4", "bandit:3*4")
    told = {"tasks": tasks, "estimator": "evolution", "lifetimes": (16, 24)} | changes
    return config_with_prior(**told, evolution=EvolutionSettings(spread=3.0))


def one_life(
    task: str, num_pairs: int, num_updates: int, settings: EvolutionSettings, **params: Any
) -> WindowResult:
    config = evolving()
    rule, weights = starting_rule(config)
    weights |= {name.replace("__", "."): x for name, x in params.items()}
    device = torch.device("cpu")
    trial = make_trial(
        *(config, rule_settings(task, rule), rule, device, None, None),
        *(num_pairs, num_updates),
    )
    lifetimes, state = Lifetimes((num_updates,)), init_group(trial.group, rng())
    return live_pairs(trial, lifetimes, settings, weights, state, rng(1))


def largest(gradient: Params) -> dict[str, float]:
    return {name: float(g.abs().max()) for name, g in gradient.items()}


def test_both_of_a_pair_live_alike_but_for_the_rule() -> None:
    """With noise too small for any number to change, there is nothing to tell them apart."""
    result = one_life("mdp:5x3", 4, 24, EvolutionSettings(spread=1e-30))
    assert not any(largest(result.gradient).values())
    apart = one_life("mdp:5x3", 4, 24, EvolutionSettings(spread=3.0))
    moved = {name for name, x in largest(apart.gradient).items() if x}
    assert moved == {f"{p}.{x}" for p in EvolutionSettings().parts for x in ("weight", "bias")}
    assert apart.num_born == 8 and apart.episodes.count.shape == (4,)


def test_finds_that_a_rule_too_weak_should_be_stronger() -> None:
    weak = torch.tensor([-4.0])
    settings = EvolutionSettings(spread=1.0, parts=("prior_strength",))
    result = one_life("bandit:3", 24, 30, settings, prior_strength__bias=weak)
    share = result.gradient["prior_strength.bias"]
    assert float(share.mean() / share.std() * len(share) ** 0.5) < -2  # the rule descends it


def test_signed_ranks_know_no_scale() -> None:
    expected = torch.tensor([0.0, 0.5, -0.75, 1.0])
    for scale in (1e-6, 1.0, 1e6):
        assert_bit_equal(signed_ranks(scale * torch.tensor([0.0, 1.0, -2.0, 50.0])), expected)


def test_resumes_to_the_last_bit(tmp_path: Path) -> None:
    whole = discover(evolving(out=tmp_path / "whole"))
    discover(evolving(out=tmp_path / "cut", steps=2))
    assert_bit_equal(whole.params, resume_discovery(tmp_path / "cut", steps=4).params)
    before = starting_rule(evolving())[1]
    changed = {name for name, p in whole.params.items() if not torch.equal(p, before[name])}
    assert {x.partition(".")[0] for x in changed} == set(EvolutionSettings().parts)


@pytest.mark.parametrize(
    "changes, fix",
    [
        ({"tasks": ("catch:4x4*3",)}, "even number of agents"),
        ({"lifetimes": ()}, "give --lifetimes"),
    ],
)
def test_what_makes_no_pairs(changes: dict[str, Any], fix: str) -> None:
    with pytest.raises(DiscorlError, match=fix):
        evolving(**changes)


def test_parts_that_the_rule_lacks(tmp_path: Path) -> None:
    config = replace(evolving(out=tmp_path / "run"), evolution=EvolutionSettings(parts=("gates",)))
    with pytest.raises(DiscorlError, match=r"no part 'gates': choose --evolution\.parts from"):
        discover(config)
