"""The gradient of the meta-loss through K updates of agents, in several memory modes.

``plain`` keeps the graph of all updates. ``recompute`` runs them without one, keeps the state
before each, and goes back rebuilding the graph of one update at a time: the memory of one update,
for the time of about one more pass. All modes give the same gradient.

With ``Window.each = tree.vmap`` everything has a leading axis of agents, the rule's parameters and
their gradient too: one gradient for each agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.func import functional_call

from discorl import tree
from discorl.agents.agent import Agent
from discorl.agents.memory import memory_args
from discorl.agents.update import Each, one_agent, update_agent
from discorl.discovery.meta_value import MetaValue, MetaValueState
from discorl.discovery.objective import (
    ObjectiveWeights,
    Validation,
    target_regulariser,
    validation_loss,
)
from discorl.ops.moments import MeanFn
from discorl.types import AgentState, Params, Rollout, Targets, UpdateInfo, Values

MemoryMode = Literal["plain", "recompute"]


class RolloutSource(Protocol):
    """Where a window's rollouts come from."""

    num_updates: int

    def training(self, update: int, state: AgentState) -> Rollout:
        """The rollout for an update of agents in ``state``; asked for once each, in order."""
        ...

    def validation(self, state: AgentState) -> Rollout:
        """The rollout that judges the updated agents, asked for last."""
        ...


class GivenRollouts:
    """Rollouts that are all there beforehand."""

    def __init__(self, training: Sequence[Rollout], validation: Rollout) -> None:
        self._training = training
        self._validation = validation
        self.num_updates = len(training)

    def training(self, update: int, state: AgentState) -> Rollout:
        del state
        return self._training[update]

    def validation(self, state: AgentState) -> Rollout:
        del state
        return self._validation


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
    update_loss: Tensor  # the agents' own loss, mean over the window


@dataclass(frozen=True)
class Window:
    """Agents, their value functions, and how the rule is judged by them."""

    agent: Agent
    meta_value: MetaValue
    weights: ObjectiveWeights
    across: MeanFn = lambda x: x
    each: Each = one_agent


def meta_gradient(
    window: Window,
    rule_params: Params,
    state: AgentState,
    value_state: MetaValueState,
    source: RolloutSource,
    mode: MemoryMode = "recompute",
) -> MetaGradient:
    """Update the agents ``source.num_updates`` times, judge them, differentiate the rule."""
    compute = {"plain": _plain, "recompute": _recompute}[mode]
    return compute(window, rule_params, state, value_state, source)


def _plain(
    window: Window,
    rule_params: Params,
    state: AgentState,
    value_state: MetaValueState,
    source: RolloutSource,
) -> MetaGradient:
    params = {k: p.detach().requires_grad_() for k, p in rule_params.items()}
    regularisers, update_losses = [], []
    for update in range(source.num_updates):
        rollout = source.training(update, tree.detach(state))
        state, info = _update(window, params, state, rollout, differentiable=True)
        value_state = _update_value(window, value_state, rollout, info)
        regularisers.append(_regulariser(window, info.targets))
        update_losses.append(info.loss)
    policy_loss, regulariser, values = _judge(window, state, value_state, source)
    regulariser = regulariser + torch.stack(regularisers).mean(0)
    loss = policy_loss + regulariser
    gradient = torch.autograd.grad(loss.sum(), list(params.values()), materialize_grads=True)
    return MetaGradient(
        loss=loss.detach(),
        policy_loss=policy_loss.detach(),
        regulariser=regulariser.detach(),
        gradient=dict(zip(params, gradient, strict=True)),
        state=tree.detach(state),
        value_state=value_state,
        values=values,
        update_loss=torch.stack(update_losses).mean(0),
    )


def _recompute(
    window: Window,
    rule_params: Params,
    state: AgentState,
    value_state: MetaValueState,
    source: RolloutSource,
) -> MetaGradient:
    steps: list[tuple[AgentState, Rollout]] = []
    regularisers, update_losses = [], []
    for update in range(source.num_updates):
        rollout = source.training(update, state)
        steps.append((state, rollout))
        state, info = _update(window, rule_params, state, rollout, differentiable=False)
        value_state = _update_value(window, value_state, rollout, info)
        regularisers.append(_regulariser(window, info.targets))
        update_losses.append(info.loss)

    leaf = _leaves_with_grad(state)
    policy_loss, regulariser, values = _judge(window, leaf, value_state, source)
    # Of the state, only the parameters are judged; all of it may carry gradients further back.
    cotangents = _gradients([(policy_loss + regulariser).sum()], [None], leaf)

    params = {k: p.detach().requires_grad_() for k, p in rule_params.items()}
    gradient = {k: torch.zeros_like(p) for k, p in params.items()}
    for old, rollout in reversed(steps):
        leaf = _leaves_with_grad(old)
        new, info = _update(window, params, leaf, rollout, differentiable=True)
        share = _regulariser(window, info.targets).sum() / len(steps)
        grads = _gradients([*tree.leaves(new), share], [*cotangents, None], (params, leaf))
        for name, grad in zip(params, grads, strict=False):
            gradient[name] = gradient[name] + grad
        cotangents = grads[len(params) :]

    regulariser = regulariser.detach() + torch.stack(regularisers).mean(0)
    return MetaGradient(
        loss=policy_loss.detach() + regulariser,
        policy_loss=policy_loss.detach(),
        regulariser=regulariser,
        gradient=gradient,
        state=state,
        value_state=value_state,
        values=values,
        update_loss=torch.stack(update_losses).mean(0),
    )


def _update(
    window: Window,
    rule_params: Params,
    state: AgentState,
    rollout: Rollout,
    differentiable: bool,
) -> tuple[AgentState, UpdateInfo]:
    return update_agent(
        window.agent,
        rule_params,
        state,
        rollout,
        differentiable=differentiable,
        across=window.across,
        each=window.each,
    )


def _update_value(
    window: Window, value_state: MetaValueState, rollout: Rollout, info: UpdateInfo
) -> MetaValueState:
    logits = info.predictions.logits.detach()
    return window.meta_value.update(value_state, rollout, logits, window.across, window.each)


def _regulariser(window: Window, targets: Targets) -> Tensor:
    return window.each(lambda t: target_regulariser(t, window.weights))(targets)


def _judge(
    window: Window, state: AgentState, value_state: MetaValueState, source: RolloutSource
) -> tuple[Tensor, Tensor, Values]:
    """The updated agents on the validation rollout: policy loss, regulariser, values."""
    rollout = source.validation(tree.detach(state))

    def judge_one(
        params: Params, value_state: MetaValueState, rollout: Rollout
    ) -> tuple[Tensor, Tensor, Values]:
        args = (rollout.observations, rollout.actions)
        options = {"method": "validate", **memory_args(window.agent.net, rollout)}
        validation = Validation(*functional_call(window.agent.net, params, args, options))
        logits = validation.logits.detach()
        values, _ = window.meta_value.estimate(value_state, rollout, logits, window.across)
        advantage = values.normalized_advantage
        policy_loss, regulariser = validation_loss(validation, rollout, advantage, window.weights)
        return policy_loss, regulariser, values

    return window.each(judge_one)(state.params, value_state, rollout)


def _leaves_with_grad(state: AgentState) -> AgentState:
    """The state as a start to differentiate from, but for the scalars: counts and moments."""
    scalar_dims = state.rule.advantage_moments.mean.dim()  # 1 where there is an axis of agents
    return tree.map(lambda x: x.detach().requires_grad_(x.dim() > scalar_dims), state)


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
