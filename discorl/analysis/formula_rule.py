"""A rule that is a formula: the policy moves by a sum of a few products of named inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from discorl.ops.moments import MeanFn
from discorl.ops.squash import signed_log1p
from discorl.rules.cmpo import CMPO
from discorl.types import (
    ActionValues,
    Params,
    PolicyTargets,
    Reading,
    ReadUnroll,
    Rollout,
    RuleState,
    Values,
)

FLOOR = 0.001
"""Probabilities below this count as this, so that logarithms and their squares stay small."""

Term = tuple[str, ...]
"""The inputs that are multiplied."""


def log_probability(logits: Tensor) -> Tensor:
    """Of each action, not below the floor."""
    return torch.softmax(logits, -1).clamp(min=FLOOR).log()


def named_inputs(
    logits: Tensor, target_logits: Tensor, rollout: Rollout, values: Values | None
) -> dict[str, Tensor]:
    """What a formula can be made of, for each action [S, B, A]. ``values`` if the rule sees them.

    The advantage of the taken action is that of its return; of the others, that of their value.
    """
    now = logits[:-1]
    own = log_probability(now)
    taken = nn.functional.one_hot(rollout.actions[:-1], now.shape[-1]).to(now)
    found = {
        "policy": own,
        "target policy": log_probability(target_logits[:-1]) - own,
        "behaviour": log_probability(rollout.behaviour_logits[:-1]) - own,
        "taken": taken,
        "reward": _for_actions(signed_log1p(rollout.rewards[1:]), now),
        "end": _for_actions(rollout.is_terminal.to(now), now),
    }
    if not isinstance(values, ActionValues):
        return found
    advantage = torch.where(
        taken > 0, values.normalized_advantage.unsqueeze(-1), values.normalized_qv_advantage[:-1]
    )
    value = signed_log1p(values.value)
    return found | {
        "advantage": advantage,
        "clipped advantage": advantage.clamp(-1, 1),
        "TD error": _for_actions(values.normalized_q_td, now),
        "value": _for_actions(value[:-1], now),
        "change of value": _for_actions(value[1:] - value[:-1], now),
    }


def prediction_inputs(online: Reading, of_target: Reading, logits: Tensor) -> dict[str, Tensor]:
    """What the rule's trajectory network reads of y and z; empty if there are none."""
    if not online.y:
        return {}
    now, found = logits[:-1], {}
    for name, reading in (("", online), ("target ", of_target)):
        y, z = reading.y[0], reading.z[0]
        for i in range(y.shape[-1]):
            which = f" {i + 1}" if y.shape[-1] > 1 else ""
            found[f"{name}y{which}"] = _for_actions(y[:-1, ..., i], now)
            found[f"next {name}y{which}"] = _for_actions(y[1:, ..., i], now)
            found[f"{name}z{which}"] = z[:-1, ..., i]
    return found


def _for_actions(x: Tensor, like: Tensor) -> Tensor:
    return x.unsqueeze(-1).expand(like.shape)


def value_of(term: Term, inputs: dict[str, Tensor]) -> Tensor:
    """The product of the term's inputs. [S, B, A]"""
    return torch.stack([inputs[name] for name in term]).prod(0)


@dataclass(frozen=True)
class FormulaRule(CMPO):
    """Agents learn values as ever; their policy's target is the policy moved by the formula."""

    terms: Sequence[Term] = ()
    coefficients: Sequence[float] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        assert len(self.terms) == len(self.coefficients)
        assert all(map(math.isfinite, self.coefficients))

    def targets(
        self,
        rule_params: Params,
        state: RuleState,
        agent_params: Params,
        unroll: ReadUnroll,
        target: ReadUnroll,
        rollout: Rollout,
        across: MeanFn,
    ) -> tuple[PolicyTargets[ActionValues], RuleState]:
        seen = (unroll, target, rollout)
        answer, state = super().targets(rule_params, state, agent_params, *seen, across)
        logits = unroll.predictions.logits
        inputs = named_inputs(logits, target.predictions.logits, rollout, answer.values)
        pi = log_probability(logits[:-1])
        for term, coefficient in zip(self.terms, self.coefficients, strict=True):
            pi = pi + coefficient * value_of(term, inputs)
        return replace(answer, pi=pi), state
