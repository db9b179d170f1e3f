"""Learning: what the agents that a rule is asked about have learnt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from discorl.analysis.lives import Life
from discorl.analysis.results import Curves, Figure, Line, NotApplicable, band, estimate, shown
from discorl.comparison.statistics import Array, Estimate


@dataclass(frozen=True)
class Learnt:
    """How the agents of one rule got on."""

    rule: str
    curve: Line
    """Mean return of the last episodes against training steps."""
    first: Estimate
    """The first that is known."""
    last: Estimate
    gain: Estimate
    """The last less the first, agent for agent."""

    @property
    def is_known(self) -> bool:
        """Whether they got better for sure."""
        return self.gain.low is not None and self.gain.low > 0


@dataclass(frozen=True)
class Learning:
    """The agents of the rule, and those of its controls."""

    task: str
    rule: str
    learnt: list[Learnt]

    def of(self, rule: str = "") -> Learnt | None:
        """Those of one rule, if there are any."""
        return next((x for x in self.learnt if x.rule == (rule or self.rule)), None)

    def findings(self) -> list[str]:
        """Whether there is anything to see in what follows."""
        own, *others = self.learnt
        said = [f"Mean return by {own.rule}: {shown(own.first)} at first, {shown(own.last)} later."]
        if own.gain.low is None:
            said.append("One agent alone does not show whether that is luck.")
        elif not own.is_known:
            said.append(
                "It is not certain that these agents have learnt anything, so the other analyses "
                "may show the rule at work on beginners; longer training (--steps) may help."
            )
        if others:
            ends = "; ".join(f"{x.rule} {shown(x.last)}" for x in others)
            said.append(f"By other rules, trained alike: {ends}.")
        return said

    def figures(self) -> list[Figure]:
        """Learning curves."""
        lines = [x.curve for x in self.learnt]
        axes = ("training steps", "mean return of the last episodes")
        return [Curves("curves", "What the agents have learnt", *axes, lines)]


def learning(
    lives: Sequence[Life], controls: Mapping[str, Sequence[Life]] | None = None
) -> Learning:
    """The learning curves of agents, from what their runs have logged."""
    groups = {lives[0].label: lives} | dict(controls or {})
    found = [learnt(rule, [life.returns for life in own]) for rule, own in groups.items()]
    known = [x for x in found if x is not None]
    if found[0] is None:
        raise NotApplicable(f"no episode of {lives[0].task} ended in training: raise --steps")
    return Learning(lives[0].task, lives[0].label, known)


def learnt(rule: str, curves: Sequence[Mapping[int, float]]) -> Learnt | None:
    """From the mean return by training step of each agent; None if they have no steps in common."""
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    if not steps:
        return None
    by_agent: Array = np.array([[curve[step] for step in steps] for curve in curves])
    first, last = by_agent[:, 0], by_agent[:, -1]
    line = Line(rule, band(steps, by_agent))
    return Learnt(rule, line, estimate(first), estimate(last), estimate(last - first))
