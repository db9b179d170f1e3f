"""A formula: how much of the rule is a sum of a few products of named inputs?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
import torch
from torch import Tensor

from discorl.agents.update import loss_mask
from discorl.analysis.formula_rule import (
    FormulaRule,
    Term,
    log_probability,
    named_inputs,
    prediction_inputs,
    value_of,
)
from discorl.analysis.lives import Life
from discorl.analysis.questions import Question, questions
from discorl.analysis.results import Curves, Dots, Figure, Line, NotApplicable, Row, band, estimate
from discorl.analysis.results import shown as shown_estimate
from discorl.analysis.trials import (
    X_LABEL,
    Y_LABEL,
    Outcome,
    hand_written,
    head_of,
    school_that_teaches,
    teach,
)
from discorl.comparison.statistics import Array, Estimate
from discorl.types import ActionValues

MOST_TERMS = 8
NEARLY = 0.95
"""The formula has as few terms as explain this share of what the longest one explains."""
TRAINED = "the formula alone"
WITH_PREDICTIONS, SHUFFLED = "with y and z as inputs", "moves shuffled"


@dataclass(frozen=True)
class Part:
    """A term of the formula."""

    name: str
    coefficient: Estimate
    """Nats of log-probability for each unit; fitted to each agent for the interval."""


@dataclass(frozen=True)
class Formula:
    """The best sums of up to eight terms, what they explain, and what agents learn by them."""

    task: str
    rule: str
    parts: list[Part]
    """Of the formula, the most important first."""
    order: list[str]
    """All terms in the order in which they were found."""
    explained: list[Line]
    """Share of the squared move explained (R2) in agents that were not fitted, by number of terms:
    of the rule, with more inputs, of its controls, and of moves that were shuffled."""
    outcomes: list[Outcome]
    """Agents trained by the rule, by the formula, and by rules written by hand; empty if agents
    cannot learn the task in a short time."""
    about: str
    """How those agents were trained, or why there are none."""

    @property
    def size(self) -> int:
        """Terms of the formula."""
        return len(self.parts)

    def line(self, label: str = "") -> Line | None:
        """What is explained, if it was measured."""
        return next((x for x in self.explained if x.label == (label or self.rule)), None)

    def findings(self) -> list[str]:
        """The formula, what it explains, and what it is worth."""
        own = self.line()
        assert own is not None
        sums = " ".join(f"{p.coefficient.value:+.2g} {p.name}" for p in self.parts)
        said = [
            f"log pi-hat - log pi is about {sums.removeprefix('+')}: "
            f"{own.band.middle[self.size - 1]:.0%} of the squared move, in agents that it was not "
            f"fitted to; {len(self.order)} terms explain {own.band.middle[-1]:.0%}."
        ]
        if (more := self.line(WITH_PREDICTIONS)) is not None:
            said.append(
                f"With y and z among the inputs {len(more.band.middle)} terms explain "
                f"{more.band.middle[-1]:.0%}."
            )
        finals = [f"{o.variant} {shown_estimate(o.final)}" for o in self.outcomes]
        if finals:
            said.append(f"Return at the end of training: {'; '.join(finals)} ({self.about}).")
        else:
            said.append(f"No agents were trained by the formula: {self.about}.")
        return said

    def figures(self) -> list[Figure]:
        """R2 against the number of terms, the terms, and learning curves."""
        label = "share of the squared move explained (R2)"
        rows = [Row(p.name, "nats per unit", p.coefficient) for p in self.parts]
        made: list[Figure] = [
            Curves(
                "explained", "How much a formula explains", "number of terms", label, self.explained
            ),
            Dots("terms", "The formula for log pi-hat - log pi", "coefficient, nats", rows),
        ]
        if self.outcomes:
            lines = [o.curve for o in self.outcomes]
            made.append(
                Curves("learning", "Learning by the formula alone", X_LABEL, Y_LABEL, lines)
            )
        return made


def formula(lives: Sequence[Life]) -> Formula:
    """Regress the move of pi-hat on inputs and products of two, and train agents by the result.

    What is explained is measured in each agent by sums that were fitted to the others. With a
    single agent half of its trajectories are fitted and the other half is explained.
    """
    life = lives[0]
    asked = [
        [questions(one, age) for age in one.ages[1:]] for one in lives
    ]  # by agent and age, of the rule and its controls
    explained, path, folds = [], [], []
    for name in asked[0][0]:
        folds_of = [_fold([ages[name] for ages in agent], False) for agent in asked]
        line, found = _explained(name, folds_of)
        explained.append(line)
        if name == life.label:
            path, folds = found, folds_of
    more = [_fold([ages[life.label] for ages in agent], True) for agent in asked]
    if more[0].terms != folds[0].terms:
        explained.insert(1, _explained(WITH_PREDICTIONS, more)[0])
    explained.append(_explained(SHUFFLED, [_shuffled(f, i) for i, f in enumerate(folds)])[0])

    middle = np.array(explained[0].band.middle)
    size = 1 + int(np.argmax(middle >= NEARLY * middle.max())) if middle.max() > 0 else 1
    terms = path[:size]
    parts = _parts(folds, terms)
    outcomes, about = _trained(life, [folds[0].terms[i] for i in terms], parts)
    order = [_name(folds[0].terms[i]) for i in path]
    return Formula(life.task, life.label, parts, order, explained, outcomes, about)


@dataclass(frozen=True)
class _Fold:
    """The steps of one agent that it learns from, in two halves of its trajectories."""

    terms: list[Term]
    x: list[Array]  # two of [steps, actions, terms]
    y: list[Array]  # two of [steps, actions]


@torch.no_grad()
def _fold(asked: Sequence[Question], with_predictions: bool) -> _Fold:
    """All terms, and the move, of an agent at several ages."""
    terms: list[Term] = []
    x: list[list[Array]] = [[], []]
    y: list[list[Array]] = [[], []]
    for one in asked:
        inputs, moves, weight, learnt = _seen(one, with_predictions)
        names = list(inputs)
        terms = [(n,) for n in names] + list(combinations_with_replacement(names, 2))
        columns = torch.stack([weighted(value_of(t, inputs), weight) for t in terms], -1)
        moves = weighted(moves, weight)
        for half in (0, 1):
            mask = learnt[:, half::2]
            x[half].append(columns[:, half::2][mask].numpy())
            y[half].append(moves[:, half::2][mask].numpy())
    return _Fold(terms, *([np.concatenate(h) for h in both] for both in (x, y)))


def weighted(x: Tensor, weight: Tensor) -> Tensor:
    """Scaled so that squares count by the actions' weights [S, B, A], which sum to 1.

    What is the same for all actions moves no policy, so it is taken out.
    """
    return weight.sqrt() * (x - (weight * x).sum(-1, keepdim=True))


def _seen(
    one: Question, with_predictions: bool
) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
    """Inputs by name, the move of pi-hat, the weight of each action, and the steps that count.

    An action weighs what policy and target give it on average: to second order the squares then
    measure the divergence between the two, which is what agents learn from.
    """
    targets, logits = one.targets(), one.unroll.predictions.logits
    values = targets.values if isinstance(targets.values, ActionValues) else None
    inputs = named_inputs(logits, one.target.predictions.logits, one.rollout, values)
    if with_predictions:
        inputs |= prediction_inputs(one.unroll.reading, one.target.reading, logits)
    learnt = loss_mask(one.rollout, one.rule.mask_episode_starts) > 0
    now = logits[:-1]
    weight = (torch.softmax(now, -1) + torch.softmax(targets.pi, -1)) / 2
    return inputs, log_probability(targets.pi) - log_probability(now), weight, learnt


def _shuffled(fold: _Fold, seed: int) -> _Fold:
    """With the moves of other steps."""
    rng = np.random.default_rng(seed)
    return _Fold(fold.terms, fold.x, [rng.permutation(half) for half in fold.y])


def _explained(label: str, folds: Sequence[_Fold]) -> tuple[Line, list[int]]:
    """R2 in each agent of sums fitted to the others, by number of terms; and the sums for all."""
    sums = [[_products(x, y) for x, y in zip(f.x, f.y, strict=True)] for f in folds]
    both = [_add(halves) for halves in sums]
    if len(folds) == 1:
        scores = [_scores(sums[0][0], sums[0][1])]
    else:
        scores = [
            _scores(_add([s for j, s in enumerate(both) if j != i]), own)
            for i, own in enumerate(both)
        ]
    length = min(map(len, scores))
    by_agent = np.array([s[:length] for s in scores])
    line = Line(label, band(range(1, length + 1), by_agent))
    return line, [chosen[-1] for chosen, _ in pursue(*_add(both)[:2])][:length]


_Products = tuple[Array, Array, float]
"""x'x, x'y and y'y: all that least squares need."""


def _products(x: Array, y: Array) -> _Products:
    flat = x.reshape(-1, x.shape[-1])
    return flat.T @ flat, flat.T @ y.ravel(), float(y.ravel() @ y.ravel())


def _add(products: Sequence[_Products]) -> _Products:
    grams, crosses, squares = zip(*products, strict=True)
    return sum(grams), sum(crosses), sum(squares)  # pyright: ignore[reportReturnType]


def _scores(fitted: _Products, tested: _Products) -> list[float]:
    """R2 on tested data of each sum that was fitted to others; 0 if nothing moves there."""
    gram, cross, squares = tested
    scores = []
    for chosen, w in pursue(*fitted[:2]):
        error = squares - 2 * w @ cross[chosen] + w @ gram[np.ix_(chosen, chosen)] @ w
        scores.append(float(1 - error / squares) if squares > 1e-12 else 0.0)
    return scores


def pursue(gram: Array, cross: Array, most: int = MOST_TERMS) -> list[tuple[list[int], Array]]:
    """Sums of one, two, ... columns that explain most (orthogonal least squares), by x'x and x'y.

    Each sum has the columns of the one before and that which then leaves the smallest error.
    """
    scale = np.sqrt(np.diag(gram))
    usable = scale > 1e-9 * max(scale.max(), 1e-30)
    unit = np.where(usable, scale, 1.0)
    g, c = gram / np.outer(unit, unit), cross / unit
    chosen: list[int] = []
    found: list[tuple[list[int], Array]] = []
    while len(chosen) < min(most, int(usable.sum())):
        rest, w = np.diag(g).copy(), c.copy()
        if chosen:  # what chosen columns say of the others is taken out of them
            solved = np.linalg.solve(g[np.ix_(chosen, chosen)], g[chosen])
            rest = rest - (g[chosen] * solved).sum(0)
            w = w - solved.T @ c[chosen]
        fresh = usable & (rest > 1e-6)
        fresh[chosen] = False
        if not fresh.any():
            break
        gain = np.where(fresh, w**2 / np.where(fresh, rest, 1.0), -1.0)
        chosen = [*chosen, int(np.argmax(gain))]
        weights = np.linalg.solve(g[np.ix_(chosen, chosen)], c[chosen]) / unit[chosen]
        found.append((chosen, weights))
    if not found:
        raise NotApplicable("nothing that the rule sees differs between actions")
    return found


def _parts(folds: Sequence[_Fold], terms: list[int]) -> list[Part]:
    """The terms with coefficients fitted to all agents, with intervals over fits to each."""
    each = [_add([_products(x, y) for x, y in zip(f.x, f.y, strict=True)]) for f in folds]

    def fit(products: _Products) -> Array:
        gram, cross, _ = products
        found = np.linalg.lstsq(gram[np.ix_(terms, terms)], cross[terms], rcond=None)[0]
        return found.astype(float)

    together, by_agent = fit(_add(each)), np.array([fit(one) for one in each])
    intervals = [estimate(column) for column in by_agent.T]
    return [
        Part(_name(folds[0].terms[i]), Estimate(float(w), interval.low, interval.high))
        for i, w, interval in zip(terms, together, intervals, strict=True)
    ]


def _name(term: Term) -> str:
    return " x ".join(term)


def _trained(life: Life, terms: Sequence[Term], parts: Sequence[Part]) -> tuple[list[Outcome], str]:
    """Agents trained by the rule, by the formula and by hand, or why there are none."""
    rule, head = life.agent.rule, head_of(life.agent.rule)
    try:
        school, by_rule = school_that_teaches(life, life.label)
    except NotApplicable as e:
        return [], str(e)
    written = FormulaRule(
        **({"num_bins": head.num_bins, "max_abs_value": head.max_abs} if head else {}),
        returns=rule.returns,
        mask_episode_starts=rule.mask_episode_starts,
        terms=tuple(terms),
        coefficients=tuple(p.coefficient.value for p in parts),
    )
    by_formula = teach(school, written, {TRAINED: {}})
    return [by_rule, *by_formula, *hand_written(school, rule)], school.about
