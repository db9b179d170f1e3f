"""Information: what can be read from an agent's predictions about its future."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from discorl.agents.network import with_params
from discorl.analysis.exact import exact_values
from discorl.analysis.lives import Age, Life
from discorl.analysis.predictions import predicted
from discorl.analysis.probes import LARGE, NUM_FOLDS, SMALL, Score, cross_validate
from discorl.analysis.questions import episode_index
from discorl.analysis.results import (
    Curves,
    Dots,
    Figure,
    Line,
    NotApplicable,
    Row,
    band,
    estimate,
    shown,
)
from discorl.comparison.statistics import Estimate
from discorl.ops.categorical import entropy
from discorl.rules.actor_critic import ActorCritic
from discorl.types import Params

TRAINED, NEWBORN, SHUFFLED = "trained", "newborn network", "shuffled targets"
MAJORITY = "the more frequent answer"
QUESTIONS = {
    "entropy": "the policy's entropy k steps later",
    "reward": "a large reward within k steps",
    "value": "the exact value of the policy",
}
HORIZONS = (1, 3, 10)
MAX_ROWS = 1500
"""Time steps of each agent that probes are trained and tested on."""
MIN_ROWS = 200
"""Fewer with a known target are no measurement."""
MIN_RARER = 0.03
"""Share of the rarer answer below which there is nothing to guess."""


@dataclass(frozen=True)
class Readout:
    """How well one output tells the answer to one question."""

    output: str
    question: str
    horizon: int
    """k; 0 for questions without."""
    source: str
    """Trained agents, or a control: the newborn network shown the same, targets shuffled, or
    agents that learnt by another rule, about their own future."""
    score: Estimate
    """R2 for entropy and value, accuracy for rewards, where the probes have not been trained."""
    baseline: Estimate
    """The same of the best constant."""

    @property
    def key(self) -> tuple[str, int]:
        """What is asked."""
        return self.question, self.horizon


@dataclass(frozen=True)
class Information:
    """Every output and question, of agents at the end of training."""

    task: str
    rule: str
    step: int
    """Training steps of these agents."""
    num_rows: int
    """Time steps of each agent."""
    readouts: list[Readout]

    def of(
        self, output: str, question: str, horizon: int | None = None, source: str = TRAINED
    ) -> Readout | None:
        """One of them, if it exists; by default that of the shortest horizon."""
        found = [
            r
            for r in self.readouts
            if (r.output, r.question, r.source) == (output, question, source)
            and horizon in (None, r.horizon)
        ]
        return min(found, key=lambda r: r.horizon, default=None)

    @property
    def outputs(self) -> list[str]:
        """The outputs that there are."""
        return list(dict.fromkeys(r.output for r in self.readouts))

    @property
    def rules(self) -> list[str]:
        """Sources that are agents of other rules."""
        own = (TRAINED, NEWBORN, SHUFFLED)
        return list(dict.fromkeys(r.source for r in self.readouts if r.source not in own))

    def findings(self) -> list[str]:
        """What each output says about the answers, beside the best constant."""
        said = []
        for question, name in QUESTIONS.items():
            own = [r for o in self.outputs if (r := self.of(o, question)) is not None]
            if not own:
                continue
            first = own[0]
            what = name.replace("k steps", _steps(first.horizon))
            scores = ", ".join(f"{r.output} {shown(r.score, 2)}" for r in own)
            unit = "accuracy" if question == "reward" else "R2"
            text = f"{what[0].upper()}{what[1:]}, {unit}: {scores}"
            newborn = [r for o in self.outputs if (r := self.of(o, question, None, NEWBORN))]
            if newborn:
                best = max(newborn, key=lambda r: r.score.value)
                text += f"; of a newborn network at best {best.output} {shown(best.score, 2)}"
            for source in self.rules:
                others = [r for r in self.readouts if r.source == source and r.key == first.key]
                if others:
                    best = max(others, key=lambda r: r.score.value)
                    text += f"; of agents {source} at best {best.output} {shown(best.score, 2)}"
            if question == "reward":
                text += f"; {MAJORITY} {shown(first.baseline, 2)}"
            said.append(f"{text}.")
        return said

    def figures(self) -> list[Figure]:
        """Each question against the horizon; then beside the controls."""
        made: list[Figure] = []
        for question, name in QUESTIONS.items():
            trained = [r for r in self.readouts if (r.question, r.source) == (question, TRAINED)]
            if not trained:
                continue
            y_label = "accuracy" if question == "reward" else "R2"
            title = f"Can it be read: {name}?"
            if len({r.horizon for r in trained}) > 1:
                lines = self._lines(trained, question)
                x_label = "horizon k, steps"
                made.append(Curves(question, title, x_label, y_label, lines))
            first = min(r.horizon for r in trained)
            own = [r for r in self.readouts if (r.question, r.horizon) == (question, first)]
            own.sort(key=lambda r: self.outputs.index(r.output))
            rows = [Row(r.output, r.source, r.score) for r in own]
            if question == "reward":
                rows.append(Row("no output", MAJORITY, own[0].baseline))
            at = name.replace("k steps", _steps(first))
            title = f"{at[0].upper()}{at[1:]}: controls"
            made.append(Dots(f"{question}-controls", title, y_label, rows))
        return made

    def _lines(self, trained: list[Readout], question: str) -> list[Line]:
        lines = []
        for output in self.outputs:
            own = sorted((r for r in trained if r.output == output), key=lambda r: r.horizon)
            lines.append(_line(output, [(r.horizon, r.score) for r in own]))
        if question == "reward":
            own = sorted(
                (r for r in trained if r.output == self.outputs[0]), key=lambda r: r.horizon
            )
            lines.append(_line(MAJORITY, [(r.horizon, r.baseline) for r in own]))
        return lines


def _steps(count: int) -> str:
    return "one step" if count == 1 else f"{count} steps"


@dataclass(frozen=True)
class _Target:
    """What probes are to tell, at each time step [S, B]; NaN where it is not known."""

    question: str
    horizon: int
    values: Tensor

    @property
    def key(self) -> tuple[str, int]:
        return self.question, self.horizon

    @property
    def is_class(self) -> bool:
        return self.question == "reward"

    def varies(self) -> bool:
        """Whether there is something to tell."""
        known = self.values[self.values.isfinite()].double()
        if len(known) < MIN_ROWS:
            return False
        if self.is_class:
            share = float(known.mean())
            return min(share, 1 - share) >= MIN_RARER
        return float(known.std()) > 1e-4


_Key = tuple[str, str, int, str]
"""Output, question, horizon and source of a score."""


def information(
    lives: Sequence[Life], controls: Mapping[str, Sequence[Life]] | None = None
) -> Information:
    """Train probes from each output to answers about the future, and test them on other episodes.

    Controls are the network before training, shown what the trained agent saw, targets that have
    been shuffled, and agents that learnt by other rules.
    """
    targets = _common_targets(lives)
    if not targets[0]:
        num_played = lives[0].ages[-1].played.actions.numel()
        raise NotApplicable(
            f"{lives[0].task} leaves nothing to predict: large rewards and changes of the "
            f"policy's entropy are too rare in {num_played} steps of an agent"
        )
    readouts, num_rows = [], 0
    found: dict[_Key, list[Score]] = {}
    for life, own in zip(lives, targets):
        num_rows = _probe(life, own, found)
    readouts += _readouts(found, len(lives))
    asked = {r.key for r in readouts if r.source == NEWBORN}
    for name, others in (controls or {}).items():
        of_rule: dict[_Key, list[Score]] = {}
        for life, own in zip(others, _common_targets(others)):
            _probe_control(life, [t for t in own if t.key in asked], f"by {name}", of_rule)
        readouts += _readouts(of_rule, len(others))
    first = lives[0]
    return Information(first.task, first.label, first.ages[-1].step, num_rows, readouts)


def _common_targets(lives: Sequence[Life]) -> list[list[_Target]]:
    """Of each agent, those that vary in all of them."""
    every = [_targets(life, life.ages[-1]) for life in lives]
    common = set.intersection(*({t.key for t in own} for own in every))
    return [[t for t in own if t.key in common] for own in every]


def _readouts(found: dict[_Key, list[Score]], num_agents: int) -> list[Readout]:
    return [
        Readout(*key, estimate([s.value for s in x]), estimate([s.baseline for s in x]))
        for key, x in found.items()
        if len(x) == num_agents
    ]


def _probe(life: Life, targets: list[_Target], found: dict[_Key, list[Score]]) -> int:
    """Add the scores of one agent, and its controls; returns how many rows they come from."""
    age, generator = life.ages[-1], torch.Generator().manual_seed(life.seed)
    rows = _rows(age, generator)
    backwards = list(enumerate(targets))[::-1]
    few = sorted({t.question: i for i, t in backwards}.values())  # the first of each question
    kinds = sorted({t.is_class: i for i, t in backwards}.values())  # a number and a class
    order = torch.randperm(len(rows), generator=generator)
    wanted = [(t, TRAINED, _values(t, rows)) for t in targets]
    wanted += [(targets[i], SHUFFLED, _values(targets[i], rows)[order]) for i in kinds]
    _add_scores(found, life, _inputs(life, age.state.params), rows, wanted)
    of_newborn = [(targets[i], NEWBORN, _values(targets[i], rows)) for i in few]
    _add_scores(found, life, _inputs(life, life.ages[0].state.params), rows, of_newborn)
    return len(rows)


def _probe_control(
    life: Life, targets: list[_Target], source: str, found: dict[_Key, list[Score]]
) -> None:
    """Add the scores of an agent that learnt by another rule."""
    if targets:
        age = life.ages[-1]
        rows = _rows(age, torch.Generator().manual_seed(life.seed))
        wanted = [(t, source, _values(t, rows)) for t in targets]
        _add_scores(found, life, _inputs(life, age.state.params), rows, wanted)


def _rows(age: Age, generator: torch.Generator) -> Tensor:
    """Time steps to look at."""
    return torch.randperm(len(_groups(age)), generator=generator)[:MAX_ROWS]


def _values(target: _Target, rows: Tensor) -> Tensor:
    return target.values.flatten()[rows].float()


def _add_scores(
    found: dict[_Key, list[Score]],
    life: Life,
    inputs: dict[str, Tensor],
    rows: Tensor,
    wanted: list[tuple[_Target, str, Tensor]],
) -> None:
    """Probe every output for every target."""
    groups = _groups(life.ages[-1])[rows]
    values, classes = torch.stack([v for *_, v in wanted], 1), [t.is_class for t, *_ in wanted]
    for output, x in inputs.items():
        size = LARGE if output in ("y", "z") else SMALL
        scores = cross_validate(x[rows], values, classes, groups, size, life.seed)
        for (target, source, _), score in zip(wanted, scores):
            found.setdefault((output, *target.key, source), []).append(score)


@torch.no_grad()
def _inputs(life: Life, params: Params) -> dict[str, Tensor]:
    """What probes see of each output: log-probabilities, and of the value a number per action.

    The actor-critic has one number for all actions.
    """
    played, rule = life.ages[-1].played, life.agent.rule
    outputs = predicted(life, params, played)
    inputs = {
        name: torch.log_softmax(x, -1).flatten(0, 1)
        for name, x in outputs.items()
        if name != "value"
    }
    reader = rule.reader(life.rule_params)
    if isinstance(rule, ActorCritic) and "value" in outputs:
        inputs["value"] = rule.value_head.value(outputs["value"]).flatten().unsqueeze(-1)
    elif "value" in outputs and reader is not None:
        read = with_params(life.agent.net, params, lambda net: net.read(played, reader))
        assert read.reading.q_value is not None
        inputs["value"] = read.reading.q_value[:-1].flatten(0, 1)
    return inputs


def _groups(age: Age) -> Tensor:
    """Which rows belong together: those of a trajectory, or of an episode if there are few. [N]"""
    num_steps, batch = age.played.actions.shape
    groups = torch.arange(batch).expand(num_steps, batch)
    if batch < NUM_FOLDS:
        groups = groups * num_steps + episode_index(age.played)
    groups = groups[:-1].flatten()
    if len(groups.unique()) < NUM_FOLDS:
        raise NotApplicable(
            f"probes need {NUM_FOLDS} trajectories or episodes to be tested on others than they "
            f"are trained on, and there are {len(groups.unique())}: use more --num-envs"
        )
    return groups


@torch.no_grad()
def _targets(life: Life, age: Age) -> list[_Target]:
    """All that vary enough to be told."""
    played = age.played
    spread = entropy(predicted(life, age.state.params, played)["policy"].double())
    episode = episode_index(played)[:-1]
    large = large_rewards(played.rewards[1:])
    made = [_Target("entropy", k, later(spread, episode, k)) for k in HORIZONS]
    made += [_Target("reward", k, within(large, episode, k)) for k in HORIZONS]
    if (value := exact_values(life, age)) is not None:
        made.append(_Target("value", 0, value))
    return [t for t in made if t.varies()]


def large_rewards(rewards: Tensor) -> Tensor:
    """Whether each reward is positive, and at least the median of those that are."""
    positive = rewards[rewards > 0]
    return rewards >= positive.median() if len(positive) else torch.zeros_like(rewards) > 0


def later(x: Tensor, episode: Tensor, steps: int) -> Tensor:
    """What x [S, B] is some steps later in the same episode; NaN where there is no such step."""
    found = torch.full_like(x, float("nan"))
    if steps < len(x):
        same = episode[steps:] == episode[:-steps]
        found[:-steps] = x[steps:].where(same, float("nan"))
    return found


def within(event: Tensor, episode: Tensor, steps: int) -> Tensor:
    """Whether one of the next actions of the episode, from this one on, brings an event. [S, B]

    NaN at the end of the trajectory, where it is not known.
    """
    num_steps = len(event)
    found = torch.zeros_like(event)
    for ahead in range(min(steps, num_steps)):
        until = num_steps - ahead
        found[:until] |= event[ahead:] & (episode[ahead:] == episode[:until])
    answer = found.double()
    answer[max(0, num_steps - steps + 1) :] = float("nan")
    return answer


def _line(label: str, points: list[tuple[int, Estimate]]) -> Line:
    """Estimates against the horizon."""
    x = [float(k) for k, _ in points]
    plain = band(x, np.array([[e.value for _, e in points]]))
    if any(e.low is None for _, e in points):
        return Line(label, plain)
    low, high = ([float(getattr(e, end)) for _, e in points] for end in ("low", "high"))
    return Line(label, replace(plain, low=low, high=high))
