"""The gradient of the meta-loss through K updates of an agent, in two memory modes.

``plain`` keeps the graph of all updates. ``recompute`` runs them without one, keeps the state
before each, and goes back rebuilding the graph of one update at a time: the memory of one update,
for the time of about one more pass. Both give the same gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import functional_call

from discorl import tree
from discorl.agents.agent import Agent
from discorl.agents.memory import memory_args
from discorl.agents.update import update_agent
from discorl.discovery.meta_value import MetaValue, MetaValueState
from discorl.discovery.objective import (
    ObjectiveWeights,
    Validation,
    target_regulariser,
    validation_loss,
)
from discorl.ops.moments import MeanFn
from discorl.types import AgentState, Params, Rollout, Values

MemoryMode = Literal["plain", "recompute"]


@dataclass(frozen=True)
class MetaGradient:
    """What one window of updates says of the rule."""

    loss: Tensor
    policy_loss: Tensor
    regulariser: Tensor
    gradient: Params
    state: AgentState
    value_state: MetaValueState
    values: Values


@dataclass(frozen=True)
class Window:
    """An agent, its value function, and how the rule is judged by them."""

    agent: Agent
    meta_value: MetaValue
    weights: ObjectiveWeights
    across: MeanFn = lambda x: x


def meta_gradient(
    window: Window,
    rule_params: Params,
    state: AgentState,
    value_state: MetaValueState,
    train_rollouts: Sequence[Rollout],
    valid_rollout: Rollout,
    mode: MemoryMode = "recompute",
) -> MetaGradient:
    """Update the agent on each training rollout, judge it on the other, differentiate the rule."""
    compute = {"plain": _plain, "recompute": _recompute}[mode]
    return compute(window, rule_params, state, value_state, train_rollouts, valid_rollout)


def _plain(
    window: Window,
    rule_params: Params,
    state: AgentState,
    value_state: MetaValueState,
    train_rollouts: Sequence[Rollout],
    valid_rollout: Rollout,
) -> MetaGradient:
    params = {k: p.detach().requires_grad_() for k, p in rule_params.items()}
    total = torch.zeros(())
    for rollout in train_rollouts:
        state, info = update_agent(
            window.agent, params, state, rollout, differentiable=True, across=window.across
        )
        total = total + target_regulariser(info.targets, window.weights) / len(train_rollouts)
        logits = info.predictions.logits.detach()
        value_state = window.meta_value.update(value_state, rollout, logits, window.across)
    policy_loss, regulariser, values = _judge(window, state.params, value_state, valid_rollout)
    loss = policy_loss + regulariser + total
    gradient = torch.autograd.grad(loss, list(params.values()), materialize_grads=True)
    return MetaGradient(
        loss=loss.detach(),
        policy_loss=policy_loss.detach(),
        regulariser=(regulariser + total).detach(),
        gradient=dict(zip(params, gradient, strict=True)),
        state=tree.detach(state),
        value_state=value_state,
        values=values,
    )


def _recompute(
    window: Window,
    rule_params: Params,
    state: AgentState,
    value_state: MetaValueState,
    train_rollouts: Sequence[Rollout],
    valid_rollout: Rollout,
) -> MetaGradient:
    num_updates = len(train_rollouts)
    before = []
    total = torch.zeros(())
    for rollout in train_rollouts:
        before.append(tree.detach(state))
        state, info = update_agent(
            window.agent, rule_params, before[-1], rollout, across=window.across
        )
        total = total + target_regulariser(info.targets, window.weights) / num_updates
        logits = info.predictions.logits
        value_state = window.meta_value.update(value_state, rollout, logits, window.across)

    leaf = _leaves_with_grad(tree.detach(state))
    policy_loss, regulariser, values = _judge(window, leaf.params, value_state, valid_rollout)
    # Of the state, only the parameters are judged; all of it may carry gradients further back.
    cotangents = _gradients([policy_loss + regulariser], [None], leaf)

    params = {k: p.detach().requires_grad_() for k, p in rule_params.items()}
    gradient = {k: torch.zeros_like(p) for k, p in params.items()}
    for old, rollout in zip(reversed(before), reversed(train_rollouts), strict=True):
        leaf = _leaves_with_grad(old)
        new, info = update_agent(
            window.agent, params, leaf, rollout, differentiable=True, across=window.across
        )
        regularised = target_regulariser(info.targets, window.weights) / num_updates
        outputs = [*tree.leaves(new), regularised]
        grads = _gradients(outputs, [*cotangents, None], (params, leaf))
        for name, grad in zip(params, grads, strict=False):
            gradient[name] = gradient[name] + grad
        cotangents = grads[len(params) :]

    return MetaGradient(
        loss=(policy_loss + regulariser + total).detach(),
        policy_loss=policy_loss.detach(),
        regulariser=(regulariser + total).detach(),
        gradient=gradient,
        state=state,
        value_state=value_state,
        values=values,
    )


def _judge(
    window: Window, params: Params, value_state: MetaValueState, rollout: Rollout
) -> tuple[Tensor, Tensor, Values]:
    """The updated agent on the validation rollout."""
    validation = Validation(
        *functional_call(
            window.agent.net,
            params,
            (rollout.observations, rollout.actions),
            {"method": "validate", **memory_args(window.agent.net, rollout)},
        )
    )
    logits = validation.logits.detach()
    values, _ = window.meta_value.estimate(value_state, rollout, logits, window.across)
    advantage = values.normalized_advantage
    return *validation_loss(validation, rollout, advantage, window.weights), values


def _leaves_with_grad(state: AgentState) -> AgentState:
    """The state as a start to differentiate from, but for the scalars: counts and moments."""
    return tree.map(lambda x: x.detach().requires_grad_(x.dim() > 0), state)


def _gradients(
    outputs: Sequence[Tensor], cotangents: Sequence[Tensor | None], inputs: Any
) -> list[Tensor]:
    """Vector-Jacobian product, one entry for each tensor of ``inputs``; 0 where it has no grad."""
    pairs = [(o, c) for o, c in zip(outputs, cotangents, strict=True) if o.requires_grad]
    wanted = tree.leaves(inputs)
    grads = iter(
        torch.autograd.grad(
            [o for o, _ in pairs],
            [x for x in wanted if x.requires_grad],
            [c for _, c in pairs],
            materialize_grads=True,
        )
    )
    return [next(grads) if x.requires_grad else torch.zeros_like(x) for x in wanted]
