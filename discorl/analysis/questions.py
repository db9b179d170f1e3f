"""Asking a rule for its targets, with its inputs as they were or with something changed.

Policies, values and rewards are constants inside a rule, so their derivatives would read 0: every
sensitivity here is the difference of two answers, in double precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from discorl import tree
from discorl.agents.agent import Agent
from discorl.agents.burn_in import warm_up, without_burn_in
from discorl.agents.network import check_heads, with_params
from discorl.analysis.lives import Age, Life
from discorl.errors import DiscorlError
from discorl.ops.moments import alone
from discorl.rules.base import UpdateRule
from discorl.rules.cmpo import CMPO
from discorl.rules.disco import DiscoRule
from discorl.types import (
    Params,
    PolicyTargets,
    Predictions,
    Reading,
    ReadUnroll,
    Rollout,
    RuleState,
)

RANDOM, HAND_WRITTEN = "random weights", "cmpo"
TARGETS = {"pi": "pi-hat", "y": "y-hat", "z": "z-hat"}
"""Fields of a rule's targets, and how figures call them."""


@dataclass(frozen=True)
class Question:
    """A rule, and all that it sees of an agent at one update."""

    rule: UpdateRule
    rule_params: Params
    state: RuleState
    agent_params: Params
    unroll: ReadUnroll
    target: ReadUnroll
    rollout: Rollout

    @torch.no_grad()
    def targets(self) -> PolicyTargets:
        """What the rule answers."""
        seen = (self.unroll, self.target, self.rollout)
        answer, _ = self.rule.targets(self.rule_params, self.state, self.agent_params, *seen, alone)
        assert isinstance(answer, PolicyTargets)
        return answer

    def with_readings(self, change: Callable[[Reading], Reading]) -> Question:
        """With what is read of the online and of the target network changed."""
        unroll, target = (replace(x, reading=change(x.reading)) for x in (self.unroll, self.target))
        return replace(self, unroll=unroll, target=target)

    def with_logits(self, change: Callable[[Tensor], Tensor]) -> Question:
        """With the online, target and behaviour policies changed."""

        def changed(x: ReadUnroll) -> ReadUnroll:
            p: Predictions = x.predictions
            return replace(x, predictions=replace(p, logits=change(p.logits)))

        behaviour = change(self.rollout.behaviour_logits)
        return replace(
            self,
            unroll=changed(self.unroll),
            target=changed(self.target),
            rollout=replace(self.rollout, behaviour_logits=behaviour),
        )


@torch.no_grad()
def question(agent: Agent, rule: UpdateRule, rule_params: Params, age: Age) -> Question:
    """What the rule sees of an agent that is about to learn from ``age.batch``.

    The moments that normalise advantages are those after this update, and stay so whatever is
    changed: otherwise a change at one time step would show at all others.
    """
    state, params, batch = age.state.rule, age.state.params, age.batch
    reader = rule.reader(rule_params)
    if reader is None or state.target_params is None:
        raise DiscorlError("only rules with policy targets can be analysed: disco103, cmpo ...")
    check_heads(agent.net, rule.heads(batch.behaviour_logits.shape[-1]))

    own = warm_up(agent.net, params, batch, agent.burn_in)
    unroll: Any = with_params(
        agent.net, params, lambda net: net.unroll(own, reader, differentiable=False)
    )
    of_target = warm_up(agent.net, state.target_params, batch, agent.burn_in)
    target = with_params(agent.net, state.target_params, lambda net: net.read(of_target, reader))
    rollout = without_burn_in(batch, agent.burn_in)
    seen = [_double(x) for x in (rule_params, state, params, unroll, target, rollout)]
    rule_params, state, params, unroll, target, rollout = seen
    _, after = rule.targets(rule_params, state, params, unroll, target, rollout, alone)
    moments = {k: getattr(after, k) for k in ("advantage_moments", "td_moments")}
    steady: Any = rule
    steady = replace(steady, returns=replace(rule.returns, moment_decay=1.0))
    return Question(steady, rule_params, replace(state, **moments), params, unroll, target, rollout)


def _double(x: Any) -> Any:
    return tree.map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, x)


def questions(life: Life, age: Age, *, controls: bool = True) -> dict[str, Question]:
    """The life's own rule and, beside it, controls that are asked about the same experience.

    One control has the rule's weights in random places, the other is written by hand. Neither needs
    agents of its own, because all of them read the same heads.
    """
    rule: Any = life.agent.rule
    asked = {life.label: question(life.agent, rule, life.rule_params, age)}
    if controls and life.rule_params:
        asked[RANDOM] = question(life.agent, rule, shuffled(life.rule_params, life.seed), age)
    if controls and isinstance(rule, DiscoRule) and rule.value_head and rule.value_head.squashed:
        head = rule.value_head
        written = CMPO(num_bins=head.num_bins, max_abs_value=head.max_abs, returns=rule.returns)
        asked[HAND_WRITTEN] = question(life.agent, written, {}, age)
    return asked


def shuffled(params: Params, seed: int) -> Params:
    """Random weights of the same sizes: the entries of each array in another order.

    Those that discovery starts from are so small that pi-hat would be uniform whatever is changed.
    """
    generator = torch.Generator().manual_seed(seed)
    return {
        name: p.flatten()[torch.randperm(p.numel(), generator=generator)].reshape(p.shape)
        for name, p in params.items()
    }


def logits_of(targets: PolicyTargets) -> dict[str, Tensor]:
    """The targets that there are, by name."""
    found = {name: getattr(targets, name, None) for name in TARGETS}
    return {name: x for name, x in found.items() if x is not None}


def moved(before: Tensor, after: Tensor) -> Tensor:
    """Share of probability that changed place (total variation). Logits [..., N] -> [...]"""
    return 0.5 * (torch.softmax(before, -1) - torch.softmax(after, -1)).abs().sum(-1)


def episode_index(rollout: Rollout) -> Tensor:
    """Which episode of its trajectory a time step belongs to. [T, B]"""
    first = torch.zeros_like(rollout.is_terminal[:1], dtype=torch.long)
    return torch.cat([first, rollout.is_terminal.long().cumsum(0)])
