"""Memories that matter and memories that do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from discorl.analysis.lifetime import lifetime, principal_components
from discorl.analysis.results import NotApplicable
from discorl.rules import CMPO
from discorl.types import LSTMState
from tests.analysis.lives import life_of
from tests.builders import random_rule_params, small_disco, small_disco_without


def test_states_on_a_line_have_one_component() -> None:
    direction = np.array([3.0, 0, -4, 0]) / 5
    distance = np.array([[0.0, 1, 4], [0, 2, 3]])
    along, explained = principal_components(distance[..., None] * direction)
    assert explained == pytest.approx([1, 0])
    assert along[..., 0] == pytest.approx(distance - distance.mean())


def test_a_gate_that_ignores_the_memory() -> None:
    rule = small_disco()
    params = random_rule_params(rule)
    params["lifetime_gate.weight"] = torch.zeros_like(params["lifetime_gate.weight"])
    params["lifetime_gate.bias"] = torch.full_like(params["lifetime_gate.bias"], -0.7)
    found = lifetime([life_of(rule, params, seed=s) for s in range(2)])
    for line in (*found.without, *found.swapped):
        assert max(line.band.middle) == 0
    (gate,) = found.gate
    assert gate.band.middle == pytest.approx([0.7, 0.7])


def test_a_memory_that_matters() -> None:
    rule = small_disco()
    lives = [life_of(rule, random_rule_params(rule), seed=s) for s in range(3)]
    found = lifetime(lives)
    assert [line.label for line in found.without] == ["pi-hat", "y-hat", "z-hat"]
    assert all(min(line.band.middle) > 0 for line in (*found.without, *found.swapped))
    assert found.steps[0].band.x == [0, 10]
    assert all(0 < v < 1 for line in found.steps for v in line.band.middle)
    assert len(found.figures()) == 7
    assert found.control[0].label == "pi-hat, random weights"
    assert all(min(line.band.middle) > 0 for line in found.control)
    # A newborn's memory is zero: for an agent that has just that, nothing changes.
    newborn = [replace(life, ages=[_forgetful(age) for age in life.ages]) for life in lives]
    again = lifetime(newborn)
    assert all(max(line.band.middle) == 0 for line in again.without)
    assert again.explained == [0, 0]
    assert "With a newborn's memory pi-hat moves by 0," in again.findings()[1]


def _forgetful(age):
    zeros = torch.zeros(4)
    state = replace(age.state.rule, lifetime_rnn=LSTMState(zeros, zeros))
    return replace(age, state=replace(age.state, rule=state))


def test_one_agent_has_no_other() -> None:
    assert lifetime([life_of(small_disco())]).swapped == []


@pytest.mark.parametrize("rule", [CMPO(num_bins=11), small_disco_without("lifetime")])
def test_rules_without_a_memory(rule: CMPO) -> None:
    with pytest.raises(NotApplicable, match="has no lifetime memory"):
        lifetime([life_of(rule)])
