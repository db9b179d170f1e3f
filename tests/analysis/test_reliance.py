"""What rules rely on that are known to use one input and no other."""

from __future__ import annotations

import torch
from torch import Tensor

from discorl.analysis.questions import HAND_WRITTEN, RANDOM
from discorl.analysis.reliance import EVERYTHING, reliance
from discorl.types import ActionValues, ReadUnroll, Rollout
from tests.analysis.lives import Known, blind_to_predictions, life_of
from tests.builders import random_rollout, random_rule_params, small_disco, small_disco_without


def only_rewards(unroll: ReadUnroll, values: ActionValues, rollout: Rollout) -> Tensor:
    del values
    logits = torch.zeros_like(unroll.predictions.logits[:-1])
    logits[..., 0] = rollout.rewards[1:]
    return logits


def test_a_rule_that_sees_rewards_alone() -> None:
    found = reliance([life_of(Known(formula=only_rewards), seed=s) for s in range(2)])
    for move in found.moves:
        if move.input in ("rewards", EVERYTHING):
            assert move.moved.value > 0.05
        else:
            assert move.moved.value == 0, (move.input, move.way)
    shuffled, ceiling = (found.move(x, "shuffled", "pi") for x in ("rewards", EVERYTHING))
    assert shuffled is not None and ceiling is not None
    assert abs(shuffled.moved.value - ceiling.moved.value) < 1e-12, "it is all that there is"
    zero = found.move("rewards", "zero", "pi")
    assert zero is not None and zero.moved.low is not None
    # Without a reward r the first of three actions has a third instead of e^r / (e^r + 2).
    grown = torch.stack([random_rollout(12, 40, seed=s).rewards[1:] for s in range(2)]).exp()
    expected = (grown / (grown + 2) - 1 / 3).abs().mean()
    assert abs(zero.moved.value - float(expected)) < 1e-6


def test_a_rule_that_ignores_y_and_z() -> None:
    rule = small_disco()
    params = blind_to_predictions(rule, random_rule_params(rule))
    found = reliance([life_of(rule, params)])
    for move in found.moves:
        of_predictions = move.input in ("y", "z", "y and z")
        if move.rule == "the rule":
            assert (move.moved.value == 0) == of_predictions, (move.input, move.way, move.target)
        elif move.rule == RANDOM and of_predictions:
            assert move.moved.value > 0


def test_every_input_that_there_is() -> None:
    found = reliance([life_of(small_disco(), seed=s) for s in range(2)])
    inputs = {(m.input, m.way) for m in found.moves if m.rule == "the rule"}
    assert len(inputs) == 6 * 2 + 1 + 1, "a memory cannot be shuffled, everything not be zero"
    written = {m.input for m in found.moves if m.rule == HAND_WRITTEN}
    assert "y" not in written and "values" in written
    assert len(found.findings()) == 3
    bare = reliance([life_of(small_disco_without("predictions", "value", "lifetime"))])
    assert {m.input for m in bare.moves} == {"rewards", "policies", EVERYTHING}
    assert {m.target for m in bare.moves} == {"pi"}
