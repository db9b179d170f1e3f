"""Lifetime: what the rule remembers of an agent's life, and what difference that makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from discorl import tree
from discorl.agents.update import loss_mask
from discorl.analysis.lives import Age, Life
from discorl.analysis.questions import RANDOM, TARGETS, Question, logits_of, moved, questions
from discorl.analysis.results import Curves, Figure, Line, NotApplicable, band
from discorl.comparison.statistics import Array
from discorl.ops.categorical import entropy
from discorl.types import LSTMState

NUM_COMPONENTS = 2
PREDICTIONS = {"pi": "logits", "y": "y", "z": "z_a"}
"""The predictions that targets are for."""
STATES = {"pi": "policy", "y": "y", "z": "z"}


@dataclass(frozen=True)
class Lifetime:
    """The memory, the steps of learning and the predictions at each age."""

    task: str
    rule: str
    explained: list[float]
    """Share of the variance of all memories, over agents and ages, along each component."""
    components: list[Line]
    gate: list[Line]
    """Size of what the memory multiplies the trajectory's features by, as a root mean square."""
    steps: list[Line]
    """How far each target is from the prediction that it is for."""
    entropies: list[Line]
    without: list[Line]
    """How far each target moves if the memory is that of a newborn agent."""
    swapped: list[Line]
    """The same if it is that of another agent of the same age; empty with one agent."""
    control: list[Line]
    """``without`` for a rule with random weights."""

    def findings(self) -> list[str]:
        """How much of the memory two numbers say, and what it is worth at the end of training."""
        share = sum(self.explained)
        said = [f"{share:.0%} of how memories differ lies in {len(self.explained)} directions."]
        for line in self.without:
            other = next((x for x in self.swapped if x.label == line.label), None)
            text = f"With a newborn's memory {line.label} moves by {line.band.middle[-1]:.2g}"
            if other is not None:
                text += f", with another agent's of the same age by {other.band.middle[-1]:.2g}"
            said.append(f"{text} (at the end of training).")
        return said

    def figures(self) -> list[Figure]:
        """All of it against training steps."""
        share = ", ".join(f"{x:.0%}" for x in self.explained)
        plots = {
            "components": (f"The memory: components ({share})", "component", self.components),
            "gate": ("The gate", "root mean square", self.gate),
            "steps": ("How far targets are from predictions", "probability moved", self.steps),
            "entropies": ("How spread predictions are", "entropy, nats", self.entropies),
            "without": ("With a newborn's memory", "probability moved", self.without),
            "control": ("With a newborn's memory: control", "probability moved", self.control),
            "swapped": ("With another agent's memory", "probability moved", self.swapped),
        }
        return [
            Curves(name, title, "training steps", label, lines)
            for name, (title, label, lines) in plots.items()
            if lines
        ]


def lifetime(lives: Sequence[Life]) -> Lifetime:
    """Follow the rule's memory of each agent, and ask the rule without it."""
    if any(age.state.rule.lifetime_rnn is None for life in lives for age in life.ages):
        raise NotApplicable(f"{lives[0].label} has no lifetime memory")
    steps = [age.step for age in lives[0].ages]
    memories = np.stack([[_memory(age).hidden.double().numpy() for age in x.ages] for x in lives])
    along, explained = principal_components(memories)
    by_name: dict[str, list[list[float]]] = {}
    for i, life in enumerate(lives):
        rows: dict[str, list[float]] = {}
        for j, age in enumerate(life.ages):
            other = lives[(i + 1) % len(lives)].ages[j] if len(lives) > 1 else None
            for name, value in _at(life, age, other).items():
                rows.setdefault(name, []).append(value)
        for name, values in rows.items():
            by_name.setdefault(name, []).append(values)

    def lines(kind: str, names: dict[str, str]) -> list[Line]:
        found = {label: by_name.get(f"{kind} {name}") for name, label in names.items()}
        return [Line(label, band(steps, np.array(x))) for label, x in found.items() if x]

    first = lives[0]
    return Lifetime(
        first.task,
        first.label,
        [float(x) for x in explained],
        [Line(f"component {c + 1}", band(steps, along[..., c])) for c in range(len(explained))],
        lines("gate", {"all": "gate"}),
        lines("step", TARGETS),
        lines("entropy", STATES),
        lines("without", TARGETS),
        lines("swapped", TARGETS),
        lines("random", {name: f"{label}, {RANDOM}" for name, label in TARGETS.items()}),
    )


def principal_components(states: Array) -> tuple[Array, Array]:
    """States [agents, ages, H] along the directions in which they differ most, and its share.

    Of the two ends of a direction, that which agents move to is positive.
    """
    rows = states.reshape(-1, states.shape[-1])
    centred = rows - rows.mean(0)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    count = min(NUM_COMPONENTS, len(sizes))
    along = (centred @ directions[:count].T).reshape(*states.shape[:2], count)
    along = along * np.where((along[:, -1] - along[:, 0]).mean(0) < 0, -1.0, 1.0)
    total = (sizes**2).sum()
    return along, sizes[:count] ** 2 / (total if total > 0 else 1.0)


def _memory(age: Age) -> LSTMState:
    memory = age.state.rule.lifetime_rnn
    assert memory is not None
    return memory


@torch.no_grad()
def _at(life: Life, age: Age, other: Age | None) -> dict[str, float]:
    """All numbers of one agent at one age."""
    everyone = questions(life, age)
    asked = everyone[life.label]
    learnt = loss_mask(asked.rollout, asked.rule.mask_episode_starts) > 0
    before, predictions = logits_of(asked.targets()), asked.unroll.predictions
    found = {"gate all": _gate(life, age)}
    for name, field in PREDICTIONS.items():
        logits: Tensor | None = getattr(predictions, field, None)
        if logits is not None and name in before:
            now = logits[: len(learnt)]
            found[f"step {name}"] = float(moved(now, before[name])[learnt].mean())
            found[f"entropy {name}"] = float(entropy(now)[learnt].mean())
    changes: dict[str, Callable[[Tensor], Tensor] | LSTMState] = {"without": torch.zeros_like}
    if other is not None:
        changes["swapped"] = tree.map(lambda x: x.double(), _memory(other))
    for kind, change in changes.items():
        found |= {f"{kind} {k}": x for k, x in _moves(asked, change, learnt).items()}
    if RANDOM in everyone:
        moves = _moves(everyone[RANDOM], torch.zeros_like, learnt)
        found |= {f"random {k}": x for k, x in moves.items()}
    return found


def _moves(
    asked: Question, memory: Callable[[Tensor], Tensor] | LSTMState, learnt: Tensor
) -> dict[str, float]:
    """How far each target moves with another memory."""
    before, after = (logits_of(x.targets()) for x in (asked, _remembering(asked, memory)))
    return {k: float(moved(x, after[k])[learnt].mean()) for k, x in before.items()}


def _remembering(asked: Question, memory: Callable[[Tensor], Tensor] | LSTMState) -> Question:
    new = memory if isinstance(memory, LSTMState) else tree.map(memory, asked.state.lifetime_rnn)
    return replace(asked, state=replace(asked.state, lifetime_rnn=new))


def _gate(life: Life, age: Age) -> float:
    weight, bias = (life.rule_params[f"lifetime_gate.{x}"] for x in ("weight", "bias"))
    gate = torch.nn.functional.linear(_memory(age).hidden, weight, bias)
    return float(gate.square().mean().sqrt())
