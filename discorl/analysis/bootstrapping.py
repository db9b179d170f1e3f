"""Bootstrapping: how far into the future a target looks, by changing what the rule sees there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from discorl import tree
from discorl.analysis.lives import Life
from discorl.analysis.questions import (
    TARGETS,
    Question,
    episode_index,
    logits_of,
    moved,
    questions,
)
from discorl.analysis.results import Curves, Figure, Line, band, estimate, shown
from discorl.comparison.result import Band
from discorl.comparison.statistics import Array, Estimate
from discorl.errors import DiscorlError
from discorl.types import Reading, Rollout

SOURCES = ("z", "y", "value", "reward")
OWN = {"z": "z", "y": "y", "pi": "reward"}
"""The input to show for each target beside the controls."""
MIN_PAIRS = 16
"""Fewer pairs of steps at a distance are no measurement."""
NUM_TRAJECTORIES = 32


@dataclass(frozen=True)
class Reach:
    """How a change of ``source`` at t + k changes ``target`` at t."""

    rule: str
    source: str
    target: str
    effect: Band
    """Share of probability that moves, for k = 0, 1, ..."""
    half: Estimate | None
    """The first k after the largest effect at which at most half of it is left. None if that is
    beyond what the trajectories show, or if there is no effect."""
    tenth: Estimate | None
    past: float
    """The largest effect of a change at t - 1 or before: 0 for a rule that only looks ahead."""


@dataclass(frozen=True)
class Bootstrapping:
    """Every input and target, for the rule and its controls, of agents at the end of training."""

    task: str
    rule: str
    step: int
    """Training steps of these agents."""
    num_pairs: list[int]
    """Pairs of steps at each distance k."""
    reaches: list[Reach]
    by_age: list[Line]
    """The effect of z on z-hat, or if there is no z of rewards on pi-hat, at each age."""

    def reach(self, source: str, target: str, rule: str = "") -> Reach | None:
        """One of them, if it exists."""
        wanted = (rule or self.rule, source, target)
        found = (r for r in self.reaches if (r.rule, r.source, r.target) == wanted)
        return next(found, None)

    def findings(self) -> list[str]:
        """How far ahead each target looks."""
        said = []
        for target, source in OWN.items():
            if (r := self.reach(source, target)) is None:
                continue
            size = max(r.effect.middle)
            text = f"{source} at t + k moves {TARGETS[target]} at t by up to {size:.2g}"
            if r.half is not None:
                text += f"; half of that is left at k = {shown(r.half)}"
            if r.tenth is not None:
                text += f", a tenth at k = {shown(r.tenth)}"
            elif size > 0:
                text += f", and more than a tenth at k = {int(r.effect.x[-1])}"
            said.append(f"{text}.")
        past = max(r.past for r in self.reaches)
        return [*said, f"Changes in the past move nothing: at most {past:.1g}."]

    def figures(self) -> list[Figure]:
        """Inputs for each target, the controls, and the ages."""
        axes = ("k, steps into the future", "probability moved")
        made: list[Figure] = []
        for target, symbol in TARGETS.items():
            own = [r for r in self.reaches if (r.rule, r.target) == (self.rule, target)]
            if not own:
                continue
            title = f"What {symbol} at t sees of t + k"
            lines = [Line(r.source, r.effect) for r in own]
            made.append(Curves(f"{target}-inputs", title, *axes, lines))
            same = [r for r in self.reaches if (r.source, r.target) == (OWN[target], target)]
            title = f"{OWN[target]} at t + k, {symbol} at t: controls"
            lines = [Line(r.rule, r.effect) for r in same]
            made.append(Curves(f"{target}-controls", title, *axes, lines))
        target = "z" if self.reach("z", "z") else "pi"
        title = f"{OWN[target]} at t + k, {TARGETS[target]} at t: by age"
        return [*made, Curves("ages", title, *axes, self.by_age)]


def bootstrapping(lives: Sequence[Life]) -> Bootstrapping:
    """Shift an input at t + k by one standard deviation; see how far the targets at t move.

    Only steps of the same episode count.
    """
    found: dict[tuple[str, str, str], list[_Effect]] = {}
    by_age: dict[int, list[_Effect]] = {}
    for life in lives:
        rng = torch.Generator().manual_seed(life.seed)
        *earlier, last = (replace(age, batch=_fewer(age.batch)) for age in life.ages)
        asked = questions(life, last)
        for rule, one in asked.items():
            for name in (s for s in SOURCES if has_source(one, s)):
                for of, effect in _effects(one, name, rng).items():
                    found.setdefault((rule, name, of), []).append(effect)
        source, target = ("z", "z") if has_source(asked[life.label], "z") else ("reward", "pi")
        for age in earlier:
            one = questions(life, age, controls=False)[life.label]
            by_age.setdefault(age.step, []).append(_effects(one, source, rng)[target])
        by_age.setdefault(last.step, []).append(found[life.label, source, target][-1])
    num_pairs = np.min([e.num_pairs for effects in found.values() for e in effects], axis=0)
    far = int((num_pairs >= MIN_PAIRS).cumprod().sum())
    if far < 2:
        raise DiscorlError("the trajectories are too short to see a step ahead: lengthen them")
    first = lives[0]
    return Bootstrapping(
        first.task,
        first.label,
        first.ages[-1].step,
        num_pairs[:far].astype(int).tolist(),
        [_reach(key, effects, far) for key, effects in found.items()],
        [Line(f"after {step} steps", _band(e, far)) for step, e in sorted(by_age.items())],
    )


def has_source(asked: Question, source: str) -> bool:
    """Whether the rule is shown such an input."""
    reading = asked.unroll.reading
    if source == "value":
        return reading.q_value is not None
    return source == "reward" or bool(getattr(reading, source))


def shifted(asked: Question, source: str, at: int, signs: Tensor) -> Question:
    """With an input at one time step moved by one standard deviation, up or down. ``signs`` [B]

    A reward is that of the action at that step.
    """
    place = at + 1 if source == "reward" else at  # it arrives with the next observation

    def shift(x: Tensor) -> Tensor:
        """[T, B, ...] for numbers, [T, B, ..., E] for embeddings of E numbers."""
        axes = tuple(range(x.dim() - 1 if source in ("y", "z") else x.dim()))
        size = x.std(axes, keepdim=True)[0]
        size = torch.where(size > 0, size, 1.0)
        x = x.clone()
        x[place] += size * signs.reshape(-1, *(1,) * (x.dim() - 2))
        return x

    def of_reading(reading: Reading) -> Reading:
        if source == "value":
            assert reading.q_value is not None
            return replace(reading, q_value=shift(reading.q_value))
        return replace(reading, **{source: tuple(map(shift, getattr(reading, source)))})

    if source != "reward":
        return asked.with_readings(of_reading)
    rewards = shift(asked.rollout.rewards)
    return replace(asked, rollout=replace(asked.rollout, rewards=rewards))


class _Effect(NamedTuple):
    by_distance: Array
    num_pairs: Array
    past: float


def _effects(asked: Question, source: str, rng: torch.Generator) -> dict[str, _Effect]:
    """What a shift of the input at each step in turn does to each target."""
    before = logits_of(asked.targets())
    episode = episode_index(asked.rollout)
    num_steps, batch = asked.rollout.is_terminal.shape
    sums = {name: np.zeros(num_steps + 1) for name in before}
    num_pairs = np.zeros(num_steps + 1)
    past = dict.fromkeys(before, 0.0)
    for at in range(num_steps if source == "reward" else num_steps + 1):
        signs = torch.randint(2, (batch,), generator=rng).double() * 2 - 1
        after = logits_of(shifted(asked, source, at, signs).targets())
        until = min(at + 1, num_steps)
        distance = at - np.arange(until)
        together = episode[:until] == episode[at]
        num_pairs[distance] += together.sum(1).numpy()
        for name in before:
            change = moved(before[name], after[name])
            sums[name][distance] += (change[:until] * together).sum(1).numpy()
            if until < num_steps:
                past[name] = max(past[name], float(change[until:].max()))
    pairs = np.maximum(num_pairs, 1)
    return {name: _Effect(sums[name] / pairs, num_pairs, past[name]) for name in before}


def _fewer(batch: Rollout) -> Rollout:
    return tree.map(lambda x: x[:, :NUM_TRAJECTORIES], batch)


def _band(effects: list[_Effect], far: int) -> Band:
    return band(range(far), np.stack([e.by_distance[:far] for e in effects]))


def _reach(key: tuple[str, str, str], effects: list[_Effect], far: int) -> Reach:
    half, tenth = (_horizon([e.by_distance[:far] for e in effects], x) for x in (0.5, 0.1))
    return Reach(*key, _band(effects, far), half, tenth, max(e.past for e in effects))


def _horizon(curves: list[Array], share: float) -> Estimate | None:
    """Where a share of the largest effect is left, if every agent's curve falls so far."""
    found = []
    for curve in curves:
        peak = int(curve.argmax())
        below = np.flatnonzero(curve[peak:] <= share * curve[peak])
        if not len(below) or not curve[peak] > 0:
            return None
        found.append(float(peak + below[0]))
    return estimate(found)
