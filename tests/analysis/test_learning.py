"""Agents that have learnt something, and agents that have not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from discorl.analysis.analyse import MAX_BATCH, in_small_batches
from discorl.analysis.learning import learning
from discorl.analysis.lives import Life
from discorl.analysis.results import Curves, NotApplicable
from discorl.training.presets import for_run
from tests.analysis.lives import life_of
from tests.builders import small_disco

BETTER = ({2: -1.0, 4: 0.0, 6: 1.0}, {4: 0.0, 6: 0.5, 8: 9.0}, {4: 0.5, 6: 1.5})
"""All of them are known at steps 4 and 6, and gain 1, 0.5 and 1 from one to the other."""


def lives(*curves: dict[int, float]) -> list[Life]:
    return [replace(life_of(small_disco(), seed=i), returns=x) for i, x in enumerate(curves)]


def test_agents_that_got_better() -> None:
    found = learning(lives(*BETTER), {"by luck": lives({4: 1.0, 6: 3.0}, {4: 1.0, 6: 1.0})})
    own, control = found.of(), found.of("by luck")
    assert own is not None and control is not None and own.is_known
    assert own.curve.band.x == [4, 6]
    assert own.first.value == pytest.approx(0.5 / 3) and own.last.value == pytest.approx(1)
    assert own.gain.value == pytest.approx(2.5 / 3)
    assert own.gain.low is not None and own.gain.low >= 0.5
    assert control.gain.value == 1 and not control.is_known, "one of two learnt nothing"
    said = " ".join(found.findings())
    assert "not certain" not in said and "by luck 2 (1 to 3)" in said
    (figure,) = found.figures()
    assert isinstance(figure, Curves)
    assert [line.label for line in figure.lines] == ["the rule", "by luck"]


def test_agents_that_did_not_are_named() -> None:
    found = learning(lives({1: 0.0, 2: 0.4}, {1: 0.0, 2: -0.4}, {1: 0.1, 2: 0.1}))
    assert "not certain" in found.findings()[1] and "--steps" in found.findings()[1]


def test_one_agent_may_have_been_lucky() -> None:
    assert "luck" in learning(lives(BETTER[0])).findings()[1]


def test_without_episodes_there_is_nothing_to_say() -> None:
    with pytest.raises(NotApplicable, match="raise --steps"):
        learning(lives({1: 0.0}, {}))


def test_large_batches_become_more_updates() -> None:
    config = for_run("catch", "policy-gradient")
    small = in_small_batches(config)
    assert config.batch_size > MAX_BATCH == small.batch_size
    seen = (x.batch_size * x.updates_per_step for x in (config, small))
    assert len(set(seen)) == 1, "as many trajectories in a training step"
    assert replace(small, batch_size=64, updates_per_step=1) == config
    mini = for_run("catch", "disco-mini")
    assert in_small_batches(mini) is mini
