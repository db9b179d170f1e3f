"""Moves of rules whose formula is known, and of none."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from discorl.analysis.questions import HAND_WRITTEN, RANDOM
from discorl.analysis.response import response
from discorl.types import ActionValues, ReadUnroll, Rollout
from tests.analysis.lives import Known, life_of
from tests.builders import small_disco


def pushed_by_advantage(unroll: ReadUnroll, values: ActionValues, rollout: Rollout) -> Tensor:
    """The taken action becomes exp(0.1 advantage) times as likely before others make up for it.

    Against a policy of log-probabilities l that is l + 0.1 A - log(1 - p + p exp(0.1 A)).
    """
    logits = unroll.predictions.logits[:-1]
    taken = nn.functional.one_hot(rollout.actions[:-1], logits.shape[-1])
    return logits + 0.1 * values.normalized_advantage.unsqueeze(-1) * taken


def test_a_rule_that_is_a_formula_of_the_advantage() -> None:
    rule = Known(formula=pushed_by_advantage)
    found = response([life_of(rule, seed=s, num_ages=3) for s in range(2)])
    curve = found.curve("pi", "advantage")
    assert curve is not None
    x, move = np.array(curve.band.x), np.array(curve.band.middle)
    # At a probability p the slope is 0.1 (1 - p), and p is about a third.
    slope = np.polyfit(x, move, 1)[0]
    assert 0.05 < slope < 0.08
    assert (np.diff(move) > 0).all()
    assert curve.explained.value > 0.85
    assert curve.null < 0.1
    for other in ("reward", "distance"):
        weaker = found.curve("pi", other)
        assert weaker is not None and weaker.explained.value < 0.5 * curve.explained.value
    assert "depends most on: advantage" in found.findings()[0]
    # The map rises from left to right wherever there are data.
    assert found.map is not None
    for row in found.map.values:
        known = [v for v in row if v is not None]
        assert known == sorted(known)


def test_a_rule_that_changes_nothing_stays_null() -> None:
    found = response([life_of(Known(), seed=s) for s in range(2)])
    for curve in found.curves:
        assert max(map(abs, curve.band.middle)) < 1e-12
        assert curve.explained.value == 0


def test_what_is_unrelated_explains_no_more_than_shuffled_data() -> None:
    def noise(unroll: ReadUnroll, values: ActionValues, rollout: Rollout) -> Tensor:
        del values, rollout
        logits = unroll.predictions.logits[:-1]
        generator = torch.Generator().manual_seed(0)
        return logits + torch.randn(logits.shape, generator=generator).to(logits)

    found = response([life_of(Known(formula=noise), seed=s) for s in range(3)])
    curve = found.curve("pi", "reward")
    assert curve is not None
    assert curve.explained.value < 1.5 * curve.null < 0.1


def test_controls_and_figures_are_there() -> None:
    found = response([life_of(small_disco(), seed=s) for s in range(2)])
    assert {c.rule for c in found.curves} == {"the rule", RANDOM, HAND_WRITTEN}
    assert {c.move for c in found.curves if c.rule == "the rule"} == {"pi", "y", "z"}
    assert {c.move for c in found.curves if c.rule == HAND_WRITTEN} == {"pi"}
    written = found.curve("pi", "advantage", HAND_WRITTEN)
    assert written is not None and written.band.middle[-1] > written.band.middle[0]
    names = [figure.name for figure in found.figures()]
    assert len(names) == len(set(names)) == 12
