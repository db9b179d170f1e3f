"""Confidence: how sure an agent's predictions are around the events of its episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discorl.analysis.episodes import episode_to_show, evenly, pictures, shows_pictures
from discorl.analysis.lives import Age, Life
from discorl.analysis.predictions import OUTPUTS, predicted
from discorl.analysis.questions import episode_index
from discorl.analysis.results import Curves, Figure, Film, Line, NotApplicable, band
from discorl.comparison.result import Band
from discorl.comparison.statistics import Array, interquartile_mean
from discorl.ops.categorical import entropy
from discorl.types import Rollout

EVENTS = {
    "reward": "a positive reward",
    "penalty": "a negative reward",
    "end": "the end of an episode",
    "decision": "a fall of the policy's entropy",
}
WINDOW = 8
"""Steps before and after an event."""
MIN_EVENTS = 8
"""Fewer are no measurement."""
NUM_SHIFTS = 200
SHARPEST = 0.95
"""A fall of the entropy is an event if it is larger than this share of all changes."""
NUM_FRAMES = 7
"""Of an episode: as many as are still to be seen on a phone."""


@dataclass(frozen=True)
class Around:
    """Confidence around one kind of event, of agents of one age."""

    event: str
    output: str
    step: int
    """Training steps of these agents."""
    num_events: int
    trace: Band
    """Standard deviations above the mean; x is the number of steps after the event."""
    null: Band
    """The same around moments that have nothing to do with it, with the range of 95 % of them."""
    outside: float
    """Share of the trace that leaves that range; 0.05 if there is nothing to see."""
    chance: float
    """How often moments at random depart, at any lag, as far from what they show on average."""


@dataclass(frozen=True)
class Confidence:
    """Every output around every kind of event, newborn and at the end of training."""

    task: str
    rule: str
    around: list[Around]
    film: Film | None = None
    """An episode of the first agent at the end of training; None if there is nothing to see."""

    def of(self, event: str, output: str, step: int | None = None) -> Around | None:
        """One of them, if it exists; by default at the end of training."""
        step = max(a.step for a in self.around) if step is None else step
        wanted = (event, output, step)
        return next((a for a in self.around if (a.event, a.output, a.step) == wanted), None)

    def findings(self) -> list[str]:
        """Where the confidence of each output changes most."""
        said = []
        last = max(a.step for a in self.around)
        for output in OUTPUTS:
            own = [a for a in self.around if (a.output, a.step) == (output, last)]
            if not own:
                continue
            peaks = [(abs(m), m, x, a) for a in own for x, m in zip(a.trace.x, a.trace.middle)]
            _, height, lag, where = max(peaks, key=lambda p: p[0])
            said.append(
                f"The confidence of {output} departs most from its mean at {lag:+.0f} steps from "
                f"{EVENTS[where.event]}: {height:+.2g} standard deviations; moments at "
                f"random depart as far somewhere in {where.chance:.1%} of cases."
            )
        return said

    def figures(self) -> list[Figure]:
        """An episode, and all outputs around each event; then y or the policy at both ages."""
        made: list[Figure] = [] if self.film is None else [self.film]
        steps = sorted({a.step for a in self.around})
        axes = ("steps after the event", "confidence, standard deviations")
        for event, name in EVENTS.items():
            last = [a for a in self.around if (a.event, a.step) == (event, steps[-1])]
            if not last:
                continue
            lines = [Line(a.output, a.trace) for a in last]
            lines.append(Line("moments at random, 95 %", _envelope([a.null for a in last])))
            made.append(Curves(event, f"Confidence around {name}", *axes, lines))
            output = last[0].output
            ages = [self.of(event, output, step) for step in steps]
            lines = [Line(f"after {a.step} steps", a.trace) for a in ages if a is not None]
            title = f"{output} around {name}, by age"
            made.append(Curves(f"{event}-ages", title, *axes, lines))
        return made


def confidence(lives: Sequence[Life]) -> Confidence:
    """Negative entropies of y, z, policy and values as the agents play, around events.

    They are measured in standard deviations of each agent's own. Moments at random are the events,
    moved along each trajectory by a random number of steps.
    """
    found = []
    for age in (0, -1):
        ages = [life.ages[age] for life in lives]
        traces = [_traces(life, at) for life, at in zip(lives, ages)]
        for event in EVENTS:
            moments = [find_events(at.played, event, t["policy"]) for at, t in zip(ages, traces)]
            if min(int(m.sum()) for m in moments) < MIN_EVENTS:
                continue
            episodes = [episode_index(at.played)[:-1].numpy() for at in ages]
            for output in traces[0]:
                own = [t[output] for t in traces]
                if (
                    one := _around(event, output, ages[0].step, own, moments, episodes)
                ) is not None:
                    found.append(one)
    around = [one for one in found if one is not None]
    if not any(a.step == lives[0].ages[-1].step for a in around):
        raise NotApplicable(
            f"{lives[0].task} shows too few events (rewards, ends of episodes) in "
            f"{lives[0].ages[-1].played.actions.numel()} steps of an agent"
        )
    film = _film(lives[0]) if shows_pictures(lives[0]) else None
    return Confidence(lives[0].task, lives[0].label, around, film)


@torch.no_grad()
def _traces(life: Life, age: Age) -> dict[str, Array]:
    """The confidence of each output at each step, standardised. [S, B] each"""
    outputs = predicted(life, age.state.params, age.played)
    return {name: _standardised(x, x).numpy() for name, x in outputs.items()}


def _standardised(logits: Tensor, among: Tensor) -> Tensor:
    """Negative entropies, in standard deviations above the mean of those of ``among``."""
    sure, every = (-entropy(x.double()) for x in (logits, among))
    spread = float(every.std())
    return (sure - every.mean()) / (spread if spread > 1e-9 else 1.0)


@torch.no_grad()
def _film(life: Life) -> Film:
    """An episode with the confidence of each output under it."""
    age = life.ages[-1]
    episode = episode_to_show(age)
    params = age.state.params
    own, among = (predicted(life, params, rollout) for rollout in (episode, age.played))
    num_steps = len(episode.actions) - 1
    x = [float(t) for t in range(num_steps)]
    lines = [
        Line(name, Band(x, _standardised(logits[:, 0], among[name]).tolist(), None, None))
        for name, logits in own.items()
    ]
    steps = evenly(num_steps, NUM_FRAMES)
    rewards = episode.rewards[1:, 0].tolist()
    return Film(
        "film",
        "An episode, and how sure the agent is",
        "steps of the episode",
        "confidence, standard deviations",
        lines,
        steps,
        pictures(life, episode, steps),
        [(t, r) for t, r in enumerate(rewards) if r],
    )


def find_events(rollout: Rollout, event: str, policy: Array) -> NDArray[np.bool_]:
    """Whether each action brings about such an event. [S, B]"""
    if event == "decision":
        same = np.diff(episode_index(rollout)[:-1].numpy(), axis=0) == 0
        rise = np.diff(policy, axis=0)
        sharp = rise > max(float(np.quantile(rise[same], SHARPEST)) if same.any() else 0.0, 1e-6)
        return np.concatenate([np.zeros_like(sharp[:1]), sharp & same])
    rewards = rollout.rewards[1:]
    is_event = {"reward": rewards > 0, "penalty": rewards < 0, "end": rollout.is_terminal}
    return is_event[event].numpy()


def around_events(trace: Array, events: NDArray[np.bool_], episode: NDArray) -> tuple[Array, Array]:
    """Mean of a trace [S, B] at each lag from -WINDOW to WINDOW, and how many steps that is of.

    Only steps of the event's own episode count.
    """
    sums, counts = np.zeros((2, 2 * WINDOW + 1))
    when, where = np.nonzero(events)
    for i, lag in enumerate(range(-WINDOW, WINDOW + 1)):
        inside = (when + lag >= 0) & (when + lag < len(trace))
        t, b = when[inside], where[inside]
        same = episode[t + lag, b] == episode[t, b]
        sums[i] = trace[t + lag, b][same].sum()
        counts[i] = same.sum()
    return sums / np.maximum(counts, 1), counts


def _around(
    event: str,
    output: str,
    step: int,
    traces: list[Array],
    events: list[NDArray[np.bool_]],
    episodes: list[NDArray],
) -> Around | None:
    everyone = list(zip(traces, events, episodes))
    means, counts = zip(*(around_events(*one) for one in everyone))
    enough = np.flatnonzero((np.stack(counts) >= MIN_EVENTS).all(0))
    if not len(enough):
        return None
    rng = np.random.default_rng(0)
    shifts = []
    for _ in range(NUM_SHIFTS):
        moved = [(t, _moved_along(e, rng), ep) for t, e, ep in everyone]
        by_agent = np.stack([around_events(*one)[0][enough] for one in moved])
        shifts.append(interquartile_mean(by_agent.T))  # as in the trace
    x = (enough - WINDOW).tolist()
    trace = band(x, np.stack(means)[:, enough])
    low, high = np.quantile(shifts, [0.025, 0.975], axis=0)
    usual = np.mean(shifts, 0)
    null = Band(trace.x, *(v.tolist() for v in (usual, low, high)))
    middle = np.array(trace.middle)
    farthest, own = np.abs(shifts - usual).max(1), np.abs(middle - usual).max()
    chance = float((1 + (farthest >= own).sum()) / (1 + NUM_SHIFTS))
    outside = float(((middle < low) | (middle > high)).mean())
    num_events = int(sum(e.sum() for e in events))
    return Around(event, output, step, num_events, trace, null, outside, chance)


def _moved_along(events: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.bool_]:
    """The events of each trajectory, all at once, at other steps of it. [S, B]"""
    num_steps, batch = events.shape
    places = np.arange(num_steps)[:, None] + rng.integers(num_steps, size=batch)
    return np.take_along_axis(events, places % num_steps, 0)


def _envelope(bands: list[Band]) -> Band:
    """From the lowest to the highest of all."""
    low = np.min([b.low for b in bands if b.low is not None], axis=0)
    high = np.max([b.high for b in bands if b.high is not None], axis=0)
    return Band(bands[0].x, ((low + high) / 2).tolist(), low.tolist(), high.tolist())
