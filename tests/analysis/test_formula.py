"""Rules that are a formula are found again, and nothing is found in noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from discorl.analysis import formula as module
from discorl.analysis.formula import SHUFFLED, TRAINED, WITH_PREDICTIONS, formula, pursue
from discorl.analysis.formula_rule import FormulaRule, log_probability
from discorl.analysis.questions import HAND_WRITTEN, RANDOM
from discorl.rules import CMPO
from discorl.types import ActionValues, ReadUnroll, Rollout
from tests.analysis.lives import Known, life_of
from tests.builders import small_disco, small_disco_without


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the regression."""
    monkeypatch.setattr(module, "_trained", lambda *args: ([], "not asked for"))


def test_columns_are_found_one_by_one() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 6))
    x[:, 5] = 2 * x[:, 0]  # says the same as another
    x[:, 4] = 0  # says nothing
    y = 3 * x[:, 2] - 1.5 * x[:, 1] + 0.5 * x[:, 3]
    found = pursue(x.T @ x, x.T @ y)
    assert [chosen[-1] for chosen, _ in found[:3]] == [2, 1, 3]
    assert found[2][1] == pytest.approx([3, -1.5, 0.5])
    assert len(found) == 4, "a column that says nothing new is left out"


@pytest.mark.usefixtures("untrained")
def test_a_given_formula_is_found_again() -> None:
    terms = (("taken", "advantage"), ("policy",))
    rule = FormulaRule(
        num_bins=11, max_abs_value=5.0, terms=terms, coefficients=(0.7, -0.25), strength=0.0
    )
    found = formula([life_of(rule, seed=s, num_ages=3) for s in range(3)])
    assert {p.name: round(p.coefficient.value, 6) for p in found.parts} == {
        "taken x advantage": 0.7,
        "policy": -0.25,
    }
    own, null = found.line(), found.line(SHUFFLED)
    assert own is not None and null is not None
    assert own.band.middle[1] == pytest.approx(1)
    assert max(null.band.middle) < 0.1
    assert "+0.7 taken x advantage" in found.findings()[0] or "0.7 taken" in found.findings()[0]
    assert found.findings()[-1] == "No agents were trained by the formula: not asked for."


@pytest.mark.usefixtures("untrained")
def test_the_hand_written_rule_is_a_formula_of_two_terms() -> None:
    rule = CMPO(num_bins=11, max_abs_value=5.0, strength=2.0, trust=1.0)
    found = formula([life_of(rule, seed=s) for s in range(2)])
    known = {p.name: p.coefficient.value for p in found.parts}
    assert known == pytest.approx({"clipped advantage": 2, "target policy": 1}, abs=0.01)


@pytest.mark.usefixtures("untrained")
def test_a_null_that_stays_null() -> None:
    def noise(unroll: ReadUnroll, values: ActionValues, rollout: Rollout) -> Tensor:
        del values, rollout
        logits = unroll.predictions.logits[:-1]
        generator = torch.Generator().manual_seed(0)
        return log_probability(logits) + torch.randn(logits.shape, generator=generator).to(logits)

    found = formula([life_of(Known(formula=noise), seed=s) for s in range(3)])
    own = found.line()
    assert own is not None and max(own.band.middle) < 0.3
    still = formula([life_of(Known(), seed=s) for s in range(2)])
    own = still.line()
    assert own is not None and max(own.band.middle) == 0
    assert max(abs(p.coefficient.value) for p in still.parts) < 1e-12


@pytest.mark.usefixtures("untrained")
def test_controls_and_rules_without_values() -> None:
    found = formula([life_of(small_disco(), seed=s) for s in range(2)])
    labels = [line.label for line in found.explained]
    assert labels == ["the rule", WITH_PREDICTIONS, RANDOM, HAND_WRITTEN, SHUFFLED]
    bare = formula([life_of(small_disco_without("predictions", "value", "lifetime"))])
    assert not any("advantage" in name for name in bare.order)
    assert [line.label for line in bare.explained] == ["the rule", RANDOM, SHUFFLED]


def test_agents_are_trained_by_the_formula() -> None:
    """By the strong baseline's own formula agents learn as by the baseline."""
    rule = CMPO(num_bins=21, max_abs_value=5.0, strength=2.0, trust=1.0)
    lives = [life_of(rule, seed=s) for s in range(2)]
    lives = [replace(x, config=replace(x.config, task="bandit:2", steps=16)) for x in lives]
    found = formula(lives)
    assert [o.variant for o in found.outcomes] == ["the rule", TRAINED, "actor-critic"]
    by_rule, by_formula = (o.final.value for o in found.outcomes[:2])
    assert abs(by_rule - by_formula) < 0.1
    assert [figure.name for figure in found.figures()] == ["explained", "terms", "learning"]


def test_a_short_life_trains_no_agents() -> None:
    found = formula([life_of(small_disco(), seed=s) for s in range(2)])
    assert found.outcomes == [] and "learn too little" in found.findings()[-1]
