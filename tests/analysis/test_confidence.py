"""Traces that follow events by construction, and traces that do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from discorl.analysis import confidence as module
from discorl.analysis.confidence import WINDOW, around_events, confidence, find_events
from discorl.analysis.results import NotApplicable
from tests.analysis.lives import life_of
from tests.builders import random_rollout, small_disco

LENGTH = 30
"""Of episodes; an event falls on the 20th step of each."""


def made_up(seed: int, follows: bool):
    """Noise that rises by 3 two steps before each event, or that does not."""
    rng = np.random.default_rng(seed)
    steps = np.arange(10 * LENGTH)
    events = np.repeat((steps % LENGTH == 20)[:, None], 4, 1)
    episode = np.repeat((steps // LENGTH)[:, None], 4, 1)
    trace = rng.normal(size=events.shape)
    if follows:
        trace += 3 * np.roll(events, -2, 0)
    return trace, events, episode


def test_a_trace_that_rises_before_events() -> None:
    found = [made_up(seed, follows=True) for seed in range(3)]
    one = module._around("reward", "y", 0, *map(list, zip(*found)))
    assert one is not None and one.num_events == 3 * 40
    assert one.trace.x[int(np.argmax(one.trace.middle))] == -2
    assert max(one.trace.middle) == pytest.approx(3, abs=0.4)
    assert one.null.high is not None and max(one.null.high) < 1
    assert 1 / 17 <= one.outside <= 4 / 17


def test_a_null_that_stays_null() -> None:
    found = []
    for trial in range(10):
        noise = [made_up(10 * trial + seed, follows=False) for seed in range(3)]
        one = module._around("reward", "y", 0, *map(list, zip(*noise)))
        assert one is not None
        found.append(one.outside)
    assert np.mean(found) < 0.12


def test_other_episodes_do_not_count() -> None:
    trace, events, episode = made_up(0, follows=True)
    events[:] = False
    events[LENGTH - 1 :: LENGTH] = True  # the last step of each episode
    _, counts = around_events(trace, events, episode)
    assert (counts[WINDOW + 1 :] == 0).all()
    assert (counts[: WINDOW + 1] == 40).all()


def test_events_are_found_where_they_are() -> None:
    rollout = random_rollout(num_steps=5, batch=2)
    rewards = torch.tensor([[9.0, 9], [0, 1], [-2, 0], [3, 0], [0, -1]])
    discounts = torch.tensor([[1.0, 1], [1, 0], [1, 1], [0, 1], [1, 1]])
    rollout = replace(rollout, rewards=rewards, discounts=discounts)
    policy = np.array([[0.0, 0], [0.1, 5], [0.1, 5.01], [9, 5.02]])
    found = {
        name: np.argwhere(find_events(rollout, name, policy)).tolist() for name in module.EVENTS
    }
    assert found["reward"] == [[0, 1], [2, 0]]
    assert found["penalty"] == [[1, 0], [3, 1]]
    assert found["end"] == [[0, 1], [2, 0]]
    assert found["decision"] == [[1, 0]], "jumps between episodes are none"


def test_a_life_of_random_experience() -> None:
    found = confidence([life_of(small_disco(), seed=s) for s in range(2)])
    assert {a.output for a in found.around} == {"y", "z", "policy", "value"}
    assert {a.step for a in found.around} == {0, 10}
    assert {"reward", "penalty", "end"} <= {a.event for a in found.around}
    assert len(found.findings()) == 4
    assert found.film is None, "vectors cannot be shown"
    ends = found.of("end", "y")
    assert ends is not None and max(ends.trace.x) == 0, "there is nothing after the end"


def test_a_task_without_events_is_an_error() -> None:
    rollout = random_rollout(num_steps=12, batch=40)
    still = replace(rollout, rewards=0 * rollout.rewards, discounts=torch.ones(12, 40))
    with pytest.raises(NotApplicable, match="too few events"):
        confidence(
            [life_of(small_disco(), rollout=replace(still, observations=torch.zeros(12, 40, 4)))]
        )


def test_an_episode_is_shown_with_the_traces_under_it() -> None:
    """Of boards; the episode that is whole and has the most reward."""
    rollout = random_rollout(num_steps=20, batch=10, observation_shape=(5, 4))
    starts = torch.ones(20, 10)
    starts[[3, 9, 15], 6] = 0  # two whole episodes, in one trajectory
    rewards = torch.zeros(20, 10)
    rewards[[11, 15], 6] = torch.tensor([2.0, -1.0])
    rewards[5, 2] = 100  # in an episode whose beginning was not seen
    rollout = replace(rollout, discounts=starts, rewards=rewards)
    life = life_of(small_disco(), rollout=rollout, observation_shape=(5, 4))
    film = module._film(life)
    assert film.rewards == [(1, 2.0), (5, -1.0)]
    assert film.steps == [0, 1, 2, 3, 4, 5] and len(film.frames) == 6
    assert [line.label for line in film.lines] == ["y", "z", "policy", "value"]
    assert [len(line.band.x) for line in film.lines] == [6] * 4
    # The trace is that of the whole trajectory, at the steps of the episode.
    traces = module._traces(life, life.ages[-1])
    assert film.lines[0].band.middle == pytest.approx(traces["y"][9:15, 6].tolist())
