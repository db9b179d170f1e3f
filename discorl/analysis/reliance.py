"""Reliance: how far the targets move if an input says nothing, or something else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from discorl import tree
from discorl.agents.update import loss_mask
from discorl.analysis.lives import Life
from discorl.analysis.questions import TARGETS, Question, logits_of, moved, questions
from discorl.analysis.results import Dots, Figure, Row, estimate, shown
from discorl.comparison.statistics import Estimate
from discorl.types import Reading

Change = Callable[[Tensor], Tensor]

INPUTS = ("y", "z", "y and z", "values", "rewards", "policies", "lifetime memory")
WAYS = ("zero", "shuffled")
CHANGES = [
    (name, way) for name in INPUTS for way in WAYS if (name, way) != ("lifetime memory", "shuffled")
]
"""A memory is of the agent, not of a trajectory, so there is none to take from another one."""
EVERYTHING = "all of them"


@dataclass(frozen=True)
class Move:
    """How far a target moves if an input is changed in some way."""

    rule: str
    input: str
    way: str
    """zero, or shuffled: taken from other trajectories of the batch."""
    target: str
    moved: Estimate
    """Share of probability, a mean over the steps that agents learn from."""


@dataclass(frozen=True)
class Reliance:
    """Every input in every way, for the rule and its controls, over all ages but newborn."""

    task: str
    rule: str
    moves: list[Move]

    def move(self, input: str, way: str, target: str, rule: str = "") -> Move | None:
        """One of them, if it exists."""
        wanted = (rule or self.rule, input, way, target)
        found = (m for m in self.moves if (m.rule, m.input, m.way, m.target) == wanted)
        return next(found, None)

    def findings(self) -> list[str]:
        """What each target relies on most."""
        said = []
        for target, symbol in TARGETS.items():
            own = [m for m in self.moves if (m.rule, m.target) == (self.rule, target)]
            own = [m for m in own if m.way == "shuffled" and m.input not in (EVERYTHING, "y and z")]
            limit = self.move(EVERYTHING, "shuffled", target)
            if own and limit:
                own.sort(key=lambda m: -m.moved.value)
                parts = (f"{m.input} {shown(m.moved, 2)}" for m in own)
                said.append(
                    f"{symbol} moves if one input comes from another trajectory: "
                    f"{', '.join(parts)}; with all inputs from there {shown(limit.moved, 2)}."
                )
        return said

    def figures(self) -> list[Figure]:
        """A plot of dots for each target."""
        made: list[Figure] = []
        for target, symbol in TARGETS.items():
            rows = [
                Row(f"{m.input} {m.way}", m.rule, m.moved) for m in self.moves if m.target == target
            ]
            if rows:
                title = f"What {symbol} relies on"
                made.append(Dots(target, title, "probability moved", rows))
        return made


def reliance(lives: Sequence[Life]) -> Reliance:
    """Ask the rule again with one input gone, or swapped between trajectories.

    Values that are gone leave returns made of rewards, and rewards that are gone leave values;
    policies that are gone are uniform; a memory that is gone is that of a newborn agent.
    """
    found: dict[tuple[str, str, str, str], list[float]] = {}
    for life in lives:
        sums: dict[tuple[str, str, str, str], list[float]] = {}
        for age in life.ages[1:]:
            for rule, asked in questions(life, age).items():
                for key, value in _moves(asked, life.seed).items():
                    sums.setdefault((rule, *key), []).append(value)
        for key, values in sums.items():
            found.setdefault(key, []).append(sum(values) / len(values))
    moves = [Move(*key, estimate(values)) for key, values in found.items()]
    order = [*INPUTS, EVERYTHING]
    moves.sort(key=lambda m: (order.index(m.input), WAYS.index(m.way)))
    return Reliance(lives[0].task, lives[0].label, moves)


def _moves(asked: Question, seed: int) -> dict[tuple[str, str, str], float]:
    """By input, way and target."""
    before = logits_of(asked.targets())
    learnt = loss_mask(asked.rollout, asked.rule.mask_episode_starts) > 0
    # A shift by a random number of trajectories leaves none where it was.
    batch = asked.rollout.actions.shape[1]
    generator = torch.Generator().manual_seed(seed)
    others = (torch.arange(batch) + int(torch.randint(1, batch, (), generator=generator))) % batch
    ways: dict[str, Change] = {"zero": torch.zeros_like, "shuffled": lambda x: x[:, others]}
    found = {}
    for name, way in CHANGES:
        if (other := changed(asked, name, ways[way])) is not None:
            for target, logits in logits_of(other.targets()).items():
                size = moved(before[target], logits)[learnt].mean()
                found[name, way, target] = float(size)
    for target, logits in before.items():
        size = moved(logits, logits[:, others])[learnt].mean()
        found[EVERYTHING, "shuffled", target] = float(size)
    return found


def changed(asked: Question, name: str, change: Change) -> Question | None:
    """With an input changed; None if the rule has no such input."""
    reading, memory = asked.unroll.reading, asked.state.lifetime_rnn
    if name == "lifetime memory":
        if memory is None:
            return None
        return replace(asked, state=replace(asked.state, lifetime_rnn=tree.map(change, memory)))
    if name == "rewards":
        rollout = replace(asked.rollout, rewards=change(asked.rollout.rewards))
        return replace(asked, rollout=rollout)
    if name == "policies":
        return asked.with_logits(change)
    if name == "values":
        if reading.q_value is None:
            return None
        return asked.with_readings(lambda r: replace(r, q_value=_present(r.q_value, change)))
    if not reading.y:
        return None
    names = name.split(" and ")

    def of_reading(r: Reading) -> Reading:
        return replace(r, **{k: tuple(map(change, getattr(r, k))) for k in names})

    return asked.with_readings(of_reading)


def _present(x: Tensor | None, change: Change) -> Tensor:
    assert x is not None
    return change(x)
