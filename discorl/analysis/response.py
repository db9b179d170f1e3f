"""Response: how the targets move the agent's predictions, as a function of what the rule saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discorl.agents.update import loss_mask
from discorl.analysis.lives import Life
from discorl.analysis.questions import Question, moved, questions
from discorl.analysis.results import Curves, Dots, Figure, HeatMap, Line, Row, band, estimate, shown
from discorl.comparison.result import Band
from discorl.comparison.statistics import Array, Estimate
from discorl.ops.categorical import log_prob, select_action
from discorl.types import ActionValues

INPUTS = {
    "advantage": "advantage, standard deviations",
    "probability": "probability of the action",
    "reward": "reward",
    "td": "TD error, standard deviations",
    "distance": "steps to the end of the trajectory",
}
MOVES = {
    "pi": "change of log-probability",
    "y": "probability of y moved",
    "z": "probability of z moved",
}
NUM_BINS = 10
NUM_CELLS = 8
NUM_PERMUTATIONS = 200
NULL_QUANTILE = 0.95
TRAJECTORY = "trajectory"
"""Which one of its batch a step belongs to."""


@dataclass(frozen=True)
class Curve:
    """A move as a function of one input, over equally filled bins of it."""

    rule: str
    move: str
    input: str
    band: Band
    """Mean move in each bin; x is the mean input there."""
    explained: Estimate
    """Share of the variance of the move that lies between the bins."""
    null: float
    """What that share stays below if moves belong to other trajectories and times, in 95 % of
    such arrangements."""


@dataclass(frozen=True)
class Response:
    """Moves against inputs, for the rule and its controls, of agents of all ages but newborn."""

    task: str
    rule: str
    curves: list[Curve]
    map: HeatMap | None
    """The change of log-probability by advantage and probability; None without values."""

    def curve(self, move: str, input: str, rule: str = "") -> Curve | None:
        """One of them, if it exists."""
        wanted = (rule or self.rule, move, input)
        return next((c for c in self.curves if (c.rule, c.move, c.input) == wanted), None)

    def findings(self) -> list[str]:
        """What explains the moves best."""
        said = []
        for move, name in MOVES.items():
            own = [c for c in self.curves if (c.rule, c.move) == (self.rule, move)]
            if not own:
                continue
            best = max(own, key=lambda c: c.explained.value)
            said.append(
                f"The {name} depends most on: {INPUTS[best.input]}. It explains "
                f"{shown(best.explained, 2)} of the variance; shuffled, up to {best.null:.2g}."
            )
        return said

    def figures(self) -> list[Figure]:
        """The policy's move against each input beside the controls; y and z; what explains most."""
        made: list[Figure] = [self.map] if self.map else []
        for name, label in INPUTS.items():
            lines = [Line(c.rule, c.band) for c in self.curves if (c.move, c.input) == ("pi", name)]
            if lines:
                title = f"How pi-hat moves the taken action: {name}"
                made.append(Curves(f"pi-{name}", title, label, f"{MOVES['pi']}, nats", lines))
        for name, label in INPUTS.items():
            lines = [
                Line(f"{c.move}, {c.rule}", c.band)
                for c in self.curves
                if c.move in ("y", "z") and c.input == name
            ]
            if lines:
                title = f"How far y-hat and z-hat move y and z: {name}"
                made.append(Curves(f"yz-{name}", title, label, "probability moved", lines))
        rows = []
        for name in INPUTS:
            of_input = [c for c in self.curves if (c.move, c.input) == ("pi", name)]
            rows += [Row(name, c.rule, c.explained) for c in of_input]
            rows += [Row(name, "shuffled", Estimate(c.null)) for c in of_input[:1]]
        label = "share of the variance that the input explains"
        return [*made, Dots("explained", "What the move of pi-hat depends on", label, rows)]


def response(lives: Sequence[Life]) -> Response:
    """Compare what the rule wants with what the agent predicts, step by step.

    These are the moves that training makes, so inputs that go together share their effect; the
    reliance on each is another analysis.
    """
    data: dict[str, list[dict[str, Array]]] = {}
    for life in lives:
        of_life: dict[str, list[dict[str, Array]]] = {}
        for age in life.ages[1:]:
            for rule, asked in questions(life, age).items():
                of_life.setdefault(rule, []).append(_steps(asked))
        for rule, ages in of_life.items():
            joined = {k: np.concatenate([a[k] for a in ages]) for k in ages[0]}
            data.setdefault(rule, []).append(joined)
    own = lives[0].label
    curves = [
        _curve(agents, rule, move, name)
        for rule, agents in data.items()
        for move in MOVES
        for name in INPUTS
        if move in agents[0] and name in agents[0]
    ]
    found = [curve for curve in curves if curve is not None]
    return Response(lives[0].task, own, found, _map(data[own]))


@torch.no_grad()
def _steps(asked: Question) -> dict[str, Array]:
    """Inputs and moves of each step that the agent learns from, trajectory by trajectory."""
    targets = asked.targets()
    values = targets.values
    rollout, predictions = asked.rollout, asked.unroll.predictions
    actions, logits = rollout.actions[:-1], predictions.logits[:-1]
    ahead = torch.arange(len(actions) - 1, -1, -1.0).unsqueeze(1).expand(actions.shape)
    found: dict[str, Tensor] = {
        "advantage": values.normalized_advantage,
        "probability": select_action(torch.softmax(logits, -1), actions),
        "reward": rollout.rewards[1:],
        "distance": ahead,
        "pi": log_prob(targets.pi, actions) - log_prob(logits, actions),
    }
    if isinstance(values, ActionValues):
        found["td"] = values.normalized_q_td
    for name, prediction in (("y", "y"), ("z", "z_a")):
        before, after = getattr(predictions, prediction, None), getattr(targets, name, None)
        if before is not None and after is not None:
            found[name] = moved(before, after)
    trajectory = torch.arange(actions.shape[1]).expand(actions.shape)
    learnt = (loss_mask(rollout, asked.rule.mask_episode_starts) > 0).T
    every = found | {TRAJECTORY: trajectory}
    return {name: x.T[learnt].double().numpy() for name, x in every.items()}


def _curve(agents: list[dict[str, Array]], rule: str, move: str, name: str) -> Curve | None:
    """The move in bins of an input that all agents share; None if the input never changes."""
    edges = _edges(np.concatenate([a[name] for a in agents]))
    if len(edges) < 3:
        return None
    places = [
        np.clip(np.searchsorted(edges, a[name], "right") - 1, 0, len(edges) - 2) for a in agents
    ]
    filled = [i for i in range(len(edges) - 1) if all((p == i).any() for p in places)]
    means = np.array([[a[move][p == i].mean() for i in filled] for a, p in zip(agents, places)])
    x = [float(np.mean([a[name][p == i].mean() for a, p in zip(agents, places)])) for i in filled]
    explained = [_explained(a[move], p) for a, p in zip(agents, places)]
    rng = np.random.default_rng(0)
    pieces = [np.split(a[move], np.flatnonzero(np.diff(a[TRAJECTORY])) + 1) for a in agents]
    null = [
        np.mean([_explained(elsewhere(own, rng), p) for own, p in zip(pieces, places)])
        for _ in range(NUM_PERMUTATIONS)
    ]
    limit = float(np.quantile(null, NULL_QUANTILE))
    return Curve(rule, move, name, band(x, means), estimate(explained), limit)


def elsewhere(pieces: Sequence[Array], rng: np.random.Generator) -> Array:
    """The pieces in another order, and all of them moved along by a random number of steps.

    Steps of a trajectory are alike, in what a rule sees and in what it does: moved one by one they
    would seem to say more about the bins than they do.
    """
    joined = np.concatenate([pieces[i] for i in rng.permutation(len(pieces))])
    return np.roll(joined, int(rng.integers(len(joined))))


def _edges(x: Array) -> Array:
    """Of bins with equally many values, as far as there are different ones."""
    values = np.unique(x)
    if len(values) <= NUM_BINS:  # a bin for each
        return np.append(values, np.inf) if len(values) > 1 else values
    return np.unique(np.quantile(x, np.linspace(0, 1, NUM_BINS + 1)))


def _explained(move: Array, place: NDArray[np.intp]) -> float:
    """Variance between bins as a share of all of it (the correlation ratio); 0 if there is none."""
    total = move.var()
    if not total > 1e-24:
        return 0.0
    count = np.bincount(place)
    mean = np.bincount(place, move) / np.maximum(count, 1)
    return float((count * (mean - move.mean()) ** 2).sum() / (len(move) * total))


def _map(agents: list[dict[str, Array]]) -> HeatMap | None:
    """The policy's move by advantage and probability, over all agents."""
    advantage, probability, move = (
        np.concatenate([a[name] for a in agents]) for name in ("advantage", "probability", "pi")
    )
    edges = _edges(advantage)
    if len(edges) < 3 or not np.isfinite(edges).all():
        return None
    low, high = np.quantile(advantage, [0.02, 0.98])
    x = np.linspace(low, high, NUM_CELLS + 1)
    y = np.linspace(0, 1, NUM_CELLS + 1)
    sums, _, _ = np.histogram2d(probability, advantage, [y, x], weights=move)
    counts, _, _ = np.histogram2d(probability, advantage, [y, x])
    values = [
        [float(f"{s / n:.6g}") if n else None for s, n in zip(*row)] for row in zip(sums, counts)
    ]
    return HeatMap(
        "map",
        "How pi-hat moves the taken action",
        INPUTS["advantage"],
        INPUTS["probability"],
        f"{MOVES['pi']}, nats",
        *(x.tolist(), y.tolist(), values),
    )
