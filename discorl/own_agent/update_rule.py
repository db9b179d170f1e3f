"""A rule with its parameters, and its loss for use with your own optimiser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from discorl import tree
from discorl.agents.agent import Agent
from discorl.agents.update import update_agent
from discorl.errors import DiscorlError
from discorl.optim import Transform
from discorl.own_agent.checks import accepted
from discorl.own_agent.module_net import ModuleNet
from discorl.rules.base import UpdateRule
from discorl.rules.store import DISCO103, LoadedRule, load_rule
from discorl.types import AgentState, Heads, Params, Rollout, RuleState, UpdateInfo

PREFIX = "module."
"""What ``ModuleNet`` puts before the names of a module's parameters."""

LOG_NAMES = {"aux_pi": "aux"}
"""Parts of the loss that have other names in logs, as in disco-torch."""

keep_gradients = Transform(lambda params: (), lambda updates, state, params: (updates, (updates,)))
"""An optimiser whose state after an update is the gradient."""


class RuleLoss(NamedTuple):
    """What ``DiscoUpdateRule.loss`` returns."""

    loss: Tensor
    """A scalar; its ``backward`` reaches every trainable parameter of the agent."""
    state: RuleState
    """The rule's memory after this step, for the next call."""
    logs: dict[str, float]


class DiscoUpdateRule:
    """A discovered rule, ready to say what an agent should learn from a rollout.

    ``rule`` is the name of a rule (``"disco103"``), the path of a rule file, or what ``load_rule``
    returned. It can also be your own rule with its ``params``, or a hand-written one such as
    ``discorl.ActorCritic()``, which has none.

        rule = discorl.DiscoUpdateRule("disco103")
        state = rule.init_state(agent)
        for rollout in rollouts:
            loss, state, logs = rule.loss(agent, rollout, state)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    ``DiscoTrainer`` does all this and more: replay, optimiser, checkpoints.
    """

    def __init__(
        self,
        rule: str | Path | LoadedRule | UpdateRule = DISCO103,
        params: Params | None = None,
        *,
        device: torch.device | str = "cpu",
        mask_episode_starts: bool | None = None,
    ) -> None:
        loaded: Any = load_rule(rule) if isinstance(rule, str | Path) else rule
        if isinstance(loaded, LoadedRule):
            self.name, self.rule = loaded.name, loaded.rule
            params = loaded.params if params is None else params
        else:
            self.name, self.rule = type(loaded).__name__, loaded
            if not hasattr(loaded, "init_params") or isinstance(loaded, type):
                raise DiscorlError(
                    f"rule is {loaded!r:.60}: it must be the name or file of a rule, what "
                    "load_rule returned, or a rule such as discorl.ActorCritic()"
                )
        if params is None:
            params = {}
            if self.rule.init_params(torch.Generator()):
                raise DiscorlError(
                    f"{self.name} has learnt parameters: pass params=, or the name or file of a "
                    "rule that includes them"
                )
        self.device = exact_device(device)
        self.params: Params = tree.to(params, self.device)
        if mask_episode_starts is not None:
            self.rule = replace(self.rule, mask_episode_starts=mask_episode_starts)

    @property
    def dtype(self) -> torch.dtype:
        """What the rule computes in."""
        return next((p.dtype for p in self.params.values()), torch.float32)

    def heads(self, num_actions: int) -> Heads:
        """The heads, with their sizes, that an agent's output must have."""
        return self.rule.heads(num_actions)

    def init_state(self, agent: nn.Module) -> RuleState:
        """The rule's memory of an agent that has not learnt yet, target network included."""
        # A copy, because the agent's own parameters will be changed in place.
        params = {name: p.clone() for name, p in trainable_params(agent).items()}
        self.check_device(agent)
        return self.rule.init_state(params)

    def loss(self, agent: nn.Module, rollout: Rollout, state: RuleState) -> RuleLoss:
        """The loss of an agent on a rollout, and the rule's next memory.

        The gradient is computed here and passed on by ``backward``, so that the numbers match
        ``DiscoTrainer``. You can add your own loss terms. The rule remembers what it has seen:
        call this exactly once per step of your optimiser.
        """
        self.check_device(agent)
        rollout = accepted(rollout, self.device, self.dtype)
        if not isinstance(state, RuleState):
            raise DiscorlError(
                f"state is a {type(state).__name__}: pass what rule.init_state(agent) or the last "
                "call of rule.loss returned"
            )
        params = trainable_params(agent)
        learner = AgentState(params, (), state)
        learner, info = self.update(agent, keep_gradients, learner, rollout)
        logs = loss_logs(info)
        del logs["update_norm"]  # the step is yours to make
        leaves = dict(agent.named_parameters())
        own = [leaves[name.removeprefix(PREFIX)] for name in params]
        gradients = list(learner.optimiser[0].values())
        return RuleLoss(_GivenGradient.apply(info.loss, gradients, *own), learner.rule, logs)

    def update(
        self, agent: nn.Module, optimiser: Transform, state: AgentState, rollout: Rollout
    ) -> tuple[AgentState, UpdateInfo]:
        """``update_agent`` for a module; ``rollout`` as ``accepted`` returns it."""
        with unchanged_buffers(agent), kept_parameters(agent):
            learner = Agent(self.net(agent, rollout), self.rule, optimiser)
            return update_agent(learner, self.params, state, rollout)

    def net(self, agent: nn.Module, rollout: Rollout) -> ModuleNet:
        """The agent as the network that ``update_agent`` takes."""
        return ModuleNet(agent, self.heads(rollout.behaviour_logits.shape[-1]), self.dtype)

    def check_device(self, agent: nn.Module) -> None:
        """Raise unless the agent's parameters are where the rule is."""
        for name, p in agent.named_parameters():
            if p.device != self.device:
                raise DiscorlError(
                    f"the agent's parameter '{name}' is on {p.device}, but the rule is on "
                    f"{self.device}: call agent.to('{self.device}'), or pass device='{p.device}'"
                )


def trainable_params(agent: nn.Module) -> Params:
    """The parameters that learn, under the names they have in ``ModuleNet``; not copied."""
    if not isinstance(agent, nn.Module):
        what = agent.__name__ if isinstance(agent, type) else f"a {type(agent).__name__}"
        raise DiscorlError(f"the agent is {what}, but it must be an nn.Module")
    params = {}
    for name, p in agent.named_parameters():
        if is_lazy(p):
            raise DiscorlError(
                f"the agent's parameter '{name}' has no shape yet: call the agent once on an "
                "observation before training"
            )
        if p.requires_grad:
            params[PREFIX + name] = p.detach()
    if not params:
        raise DiscorlError("the agent cannot learn: none of its parameters requires a gradient")
    return params


def exact_device(device: torch.device | str) -> torch.device:
    """The device with its number: tensors on "cuda" say "cuda:0"."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, NotImplementedError) as e:
        raise DiscorlError(f"cannot use the device '{device}': {str(e).splitlines()[0]}") from e


def loss_logs(info: UpdateInfo) -> dict[str, float]:
    """What an update did, as numbers; waits for the device once."""
    values = {"total_loss": info.loss}
    values |= {f"{LOG_NAMES.get(name, name)}_loss": x for name, x in info.losses.items()}
    values |= {"gradient_norm": info.gradient_norm, "update_norm": info.update_norm}
    return dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))


@contextmanager
def unchanged_buffers(agent: nn.Module) -> Iterator[None]:
    """Raise if the agent changes its buffers in the meantime.

    The online and target networks share the buffers, so statistics of one would leak into the
    other, and an update would no longer be a function of its inputs.
    """

    def marks() -> dict[str, tuple[int, int]]:
        return {
            name: (id(b), -1 if b.is_inference() else b._version)
            for name, b in agent.named_buffers()
        }

    before = marks()
    yield
    for name, mark in marks().items():
        if before.get(name) != mark:
            raise DiscorlError(
                f"the agent changes its buffer '{name}' in forward, which would mix the statistics "
                "of the online and target networks: put that layer in eval mode, or use LayerNorm "
                "or GroupNorm instead of BatchNorm"
            )


@contextmanager
def kept_parameters(agent: nn.Module) -> Iterator[None]:
    """Put the agent's own parameters back afterwards.

    ``functional_call`` leaves plain tensors behind in layers that the module holds twice.
    """
    before = [(module._parameters, dict(module._parameters)) for module in agent.modules()]
    try:
        yield
    finally:
        for own, saved in before:
            own.update(saved)


class _GivenGradient(torch.autograd.Function):
    """A loss whose gradient is already known."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: list[Tensor], *params: Tensor) -> Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return None, None, *(grad_outputs[0] * g for g in ctx.gradients)
