"""How far ahead rules look whose reach is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from discorl.analysis.bootstrapping import bootstrapping
from discorl.analysis.questions import HAND_WRITTEN, RANDOM
from discorl.types import ActionValues, ReadUnroll, Rollout
from tests.analysis.lives import Known, blind_to_predictions, endless, life_of
from tests.builders import random_rule_params, small_disco


def rewards_ahead(distance: int):
    """The sum of the rewards of this action and the next ``distance`` as a logit."""

    def pi_hat(unroll: ReadUnroll, values: ActionValues, rollout: Rollout) -> Tensor:
        del values
        later = torch.nn.functional.pad(rollout.rewards[1:], (0, 0, 0, distance))
        sums = sum(later[k : len(rollout.rewards) - 1 + k] for k in range(distance + 1))
        logits = torch.zeros_like(unroll.predictions.logits[:-1])
        logits[..., 0] = sums
        return logits

    return pi_hat


@pytest.mark.parametrize("distance", [0, 1, 4])
def test_a_rule_that_looks_some_steps_ahead_and_no_further(distance: int) -> None:
    rule = Known(formula=rewards_ahead(distance))
    found = bootstrapping([life_of(rule, seed=s, rollout=endless(s)) for s in range(2)])
    reach = found.reach("reward", "pi")
    assert reach is not None and reach.half is not None and reach.tenth is not None
    seen, unseen = reach.effect.middle[: distance + 1], reach.effect.middle[distance + 1 :]
    assert min(seen) > 0.01
    assert max(unseen) == 0
    assert (reach.half.value, reach.tenth.value) == (distance + 1, distance + 1)
    assert reach.effect.low is not None and reach.effect.low[0] <= reach.effect.middle[0]
    of_value = found.reach("value", "pi")
    assert of_value is not None and max(of_value.effect.middle) == 0
    assert of_value.half is None, "nothing cannot fall to half"


def test_discovered_rules_see_the_future_of_the_episode_and_nothing_else() -> None:
    found = bootstrapping([life_of(small_disco(), seed=s) for s in range(2)])
    assert {r.rule for r in found.reaches} == {"the rule", RANDOM, HAND_WRITTEN}
    assert all(r.past == 0 for r in found.reaches)
    for source, target in [("z", "z"), ("y", "y"), ("reward", "pi"), ("value", "pi")]:
        reach = found.reach(source, target)
        assert reach is not None and min(reach.effect.middle) > 0, (source, target)
    assert found.reach("z", "pi", HAND_WRITTEN) is None
    assert found.num_pairs[0] == 11 * 32, "every step with itself"
    assert found.num_pairs == sorted(found.num_pairs, reverse=True)
    assert [line.label for line in found.by_age] == ["after 0 steps", "after 10 steps"]
    assert "past move nothing" in found.findings()[-1]


def test_a_rule_that_ignores_y_and_z() -> None:
    rule = small_disco()
    params = blind_to_predictions(rule, random_rule_params(rule))
    found = bootstrapping([life_of(rule, params)])
    for reach in found.reaches:
        if reach.rule == "the rule" and reach.source in ("y", "z"):
            assert max(reach.effect.middle) == 0
            assert reach.half is None
    of_reward = found.reach("reward", "z")
    assert of_reward is not None and max(of_reward.effect.middle) > 0
    of_random = found.reach("z", "z", RANDOM)
    assert of_random is not None and max(of_random.effect.middle) > 0


def test_the_end_of_an_episode_is_the_end_of_sight() -> None:
    """With episodes of three steps nothing further than two steps is measured."""
    rollout = endless()
    rollout.discounts[::3] = 0
    found = bootstrapping([life_of(small_disco(), rollout=rollout)])
    assert len(found.num_pairs) == 3
