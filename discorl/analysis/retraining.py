"""Retraining: how agents learn from scratch if the rule never sees an input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from discorl.analysis.lives import Life
from discorl.analysis.questions import RANDOM, Question, question, shuffled
from discorl.analysis.reliance import CHANGES, changed
from discorl.analysis.results import Curves, Dots, Figure, Row, estimate, shown
from discorl.analysis.trials import (
    X_LABEL,
    Y_LABEL,
    Outcome,
    hand_written,
    school_that_teaches,
    teach,
)
from discorl.comparison.statistics import Estimate
from discorl.ops.moments import MeanFn
from discorl.rules.base import UpdateRule
from discorl.rules.values import ReturnSettings, estimate_read_values
from discorl.types import (
    AgentOutput,
    Heads,
    Params,
    PolicyTargets,
    Reader,
    ReadUnroll,
    Rollout,
    RuleState,
)

PREFIX = "counterfactual."
AS_IT_IS = "nothing changed"
YZ_ZERO = ("y and z", "zero")
OWN_ONLY = "y and z zero for y-hat and z-hat"


@dataclass(frozen=True)
class Retraining:
    """Learning curves under each change of the rule's inputs, and of rules written by hand."""

    task: str
    rule: str
    about: str
    """How the agents were trained."""
    outcomes: list[Outcome]

    def outcome(self, variant: str) -> Outcome | None:
        """One of them, if it exists."""
        return next((o for o in self.outcomes if o.variant == variant), None)

    def findings(self) -> list[str]:
        """Which changes cost something, and which do not."""
        base = self.outcome(AS_IT_IS)
        assert base is not None
        said = [f"The rule as it is: return {shown(base.final)} at the end ({self.about})."]
        worse, rest = [], []
        for variant, cost in self.costs().items():
            is_known = cost.high is not None and cost.high < 0
            (worse if is_known else rest).append(f"{variant} {shown(cost, 2)}")
        if worse:
            said.append(f"Return is lower, agent for agent, with: {'; '.join(worse)}.")
        if rest:
            said.append(f"It is not clearly lower with: {'; '.join(rest)}.")
        return said

    def costs(self) -> dict[str, Estimate]:
        """Return at the end less that of the same newborn agents under the rule as it is."""
        base = self.outcome(AS_IT_IS)
        assert base is not None
        return {
            o.variant: estimate([x - y for x, y in zip(o.by_agent, base.by_agent, strict=True)])
            for o in self.outcomes
            if o is not base
        }

    def figures(self) -> list[Figure]:
        """The curves in groups that can be read, and the end of all of them."""
        controls = [o for o in self.outcomes if not o.variant.endswith(("zero", "shuffled"))]
        controls = [o for o in controls if o.variant != OWN_ONLY]
        groups = {
            "yz": ("y and z", [o for o in self.outcomes if o.variant.startswith("y and z")]),
            "zero": ("an input that is zero", self._others("zero")),
            "shuffled": ("an input from another trajectory", self._others("shuffled")),
        }
        made: list[Figure] = []
        for name, (title, some) in groups.items():
            if some:
                lines = [o.curve for o in (controls if name == "yz" else controls[:1]) + some]
                made.append(Curves(name, f"Learning without {title}", X_LABEL, Y_LABEL, lines))
        if "yz" not in {figure.name for figure in made}:
            lines = [o.curve for o in controls]
            made.append(Curves("controls", "Learning beside controls", X_LABEL, Y_LABEL, lines))
        rows = [Row(variant, "agent for agent", cost) for variant, cost in self.costs().items()]
        label = "change of the mean return"
        return [*made, Dots("cost", "What each change costs at the end", label, rows)]

    def _others(self, way: str) -> list[Outcome]:
        some = [o for o in self.outcomes if o.variant.endswith(f" {way}")]
        return [o for o in some if not o.variant.startswith("y and z")]


def retraining(lives: Sequence[Life]) -> Retraining:
    """Train fresh agents under every change of inputs that the rule has.

    The network sees the change in every update. Its agents' values go on learning from true
    rewards, because that is the agent's learning, not the rule's: a rule without values to see has
    agents that have values.
    """
    life = lives[0]
    rule, params = life.agent.rule, life.rule_params
    asked = question(life.agent, rule, params, life.ages[-1])
    known = [
        change
        for change in CHANGES
        if change[0] not in ("y", "z") and changed(asked, change[0], torch.zeros_like) is not None
    ]
    school, as_it_is = school_that_teaches(life, AS_IT_IS)
    if school.is_long and YZ_ZERO in known:  # only what the paper asked
        known = [change for change in known if change[0] == YZ_ZERO[0]]
    outcomes = [as_it_is]
    variants: dict[str, Params] = {}
    for change in known:
        variants[" ".join(change)] = _flags(params, [change], known)
    if params and not school.is_long:
        variants[RANDOM] = _flags(shuffled(params, life.seed), [], known)
    if YZ_ZERO in known:
        own = {OWN_ONLY: _flags(params, [YZ_ZERO], [YZ_ZERO])}
        outcomes += teach(school, Counterfactual(rule, own_targets_only=True), own)
    outcomes += teach(school, Counterfactual(rule), variants)
    outcomes += hand_written(school, rule)
    return Retraining(life.task, life.label, school.about, outcomes)


def _flags(
    params: Params, changes: Sequence[tuple[str, str]], known: Sequence[tuple[str, str]]
) -> Params:
    """The rule's parameters with those that say what is changed."""
    flags = {_name(*change): torch.tensor(float(change in changes)) for change in known}
    return params | flags


def _name(input: str, way: str) -> str:
    return f"{PREFIX}{input}.{way}"


@dataclass(frozen=True)
class Counterfactual:
    """A rule that sees changed inputs. What is changed is among its parameters, for each agent."""

    rule: UpdateRule
    own_targets_only: bool = False
    """Whether only y-hat and z-hat are made of changed inputs."""

    @property
    def returns(self) -> ReturnSettings:
        return self.rule.returns

    @property
    def mask_episode_starts(self) -> bool:
        return self.rule.mask_episode_starts

    def heads(self, num_actions: int) -> Heads:
        return self.rule.heads(num_actions)

    def init_params(self, generator: torch.Generator) -> Params:
        return self.rule.init_params(generator)

    def init_state(self, agent_params: Params) -> RuleState:
        return self.rule.init_state(agent_params)

    def reader(self, rule_params: Params) -> Reader | None:
        return self.rule.reader(_without_flags(rule_params))

    def targets(
        self,
        rule_params: Params,
        state: RuleState,
        agent_params: Params,
        unroll: ReadUnroll,
        target: ReadUnroll,
        rollout: Rollout,
        across: MeanFn,
    ) -> tuple[PolicyTargets, RuleState]:
        """Answers to changed inputs; values to learn are those that the true ones give."""
        own = _without_flags(rule_params)
        true = Question(self.rule, own, state, agent_params, unroll, target, rollout)
        seen = true
        for name, way in CHANGES:
            flag = rule_params.get(_name(name, way))
            if flag is not None:
                seen = changed(seen, name, _Where(flag > 0, way)) or seen
        answer, after = _ask(seen, across)
        changes: dict[str, Any] = {}
        if self.own_targets_only:
            changes = {k: getattr(answer, k) for k in ("y", "z")}
            answer, after = _ask(true, across)
        else:
            changes["values"], _ = estimate_read_values(
                *(unroll.reading, target.reading, unroll.predictions.logits, rollout, state),
                *(self.rule.returns, across),
            )
        return replace(answer, **changes), after

    def loss(
        self, predictions: Any, targets: Any, rollout: Rollout
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return self.rule.loss(predictions, targets, rollout)

    def state_value(self, output: AgentOutput) -> Tensor | None:
        return self.rule.state_value(output)

    def diagnostics(self, predictions: Any, targets: Any, rollout: Rollout) -> dict[str, Tensor]:
        return self.rule.diagnostics(predictions, targets, rollout)


@dataclass(frozen=True)
class _Where:
    """A change of tensors [T, B, ...] that is made where a flag says so.

    Batches are drawn at random, so the next trajectory is any other one.
    """

    flag: Tensor
    way: str

    def __call__(self, x: Tensor) -> Tensor:
        other = torch.zeros_like(x) if self.way == "zero" else x.roll(1, 1)
        return torch.where(self.flag, other, x)


def _ask(seen: Question, across: MeanFn) -> tuple[PolicyTargets, RuleState]:
    inputs = (seen.unroll, seen.target, seen.rollout)
    targets, state = seen.rule.targets(
        seen.rule_params, seen.state, seen.agent_params, *inputs, across
    )
    assert isinstance(targets, PolicyTargets)
    return targets, state


def _without_flags(params: Params) -> Params:
    return {name: p for name, p in params.items() if not name.startswith(PREFIX)}
