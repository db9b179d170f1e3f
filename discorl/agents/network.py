"""The contract between agents and their networks, and the one way to call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.func import functional_call

from discorl.errors import DiscorlError
from discorl.types import (
    AgentOutput,
    Heads,
    Memory,
    Observation,
    Params,
    Predictions,
    Reader,
    ReadUnroll,
    Rollout,
    TimeStep,
    Unroll,
)


class Network(Protocol):
    """What an agent's network offers; it must be an ``nn.Module``.

    ``AgentNet`` is one, and ``own_agent.ModuleNet`` makes one of any module. Memory is a tree of
    tensors with the batch first, None for a network that has none. It resets wherever an episode
    begins, that is, where ``discount`` is 0.
    """

    num_actions: int
    head_sizes: Heads

    def initial_memory(self, batch: int) -> Memory:
        """The memory before the first step."""
        ...

    def step(self, now: TimeStep, memory: Memory) -> tuple[Tensor, Memory]:
        """Logits [B, A] to act from, and the memory after this time step."""
        ...

    def output(self, observation: Observation, memory: Memory = None) -> AgentOutput:
        """Every head for every action, one step after ``memory``. [N, ...] -> [N, ...]"""
        ...

    def unroll(self, rollout: Rollout, reader: Reader | None, *, differentiable: bool) -> Unroll:
        """The predictions that the loss trains, and the rule's reading of all states and actions.

        The reading carries gradients only if ``differentiable``.
        """
        ...

    def predict(self, rollout: Rollout) -> Predictions:
        """The predictions of ``unroll`` alone; forward-mode derivatives must pass through."""
        ...

    def read(self, rollout: Rollout, reader: Reader) -> ReadUnroll:
        """Logits and the rule's reading alone: what a target network is for."""
        ...

    def validate(self, rollout: Rollout) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Logits and y [T, B, ...], and z of the taken actions [T-1, B, Y], for the meta-loss.

        y and z are None if the rule has none.
        """
        ...

    def memory_after(self, rollout: Rollout) -> Memory:
        """The memory after the last step of a rollout."""
        ...


N = TypeVar("N", bound=Network)
T = TypeVar("T")


def with_params(net: N, params: Params, fn: Callable[[N], T]) -> T:
    """``fn(net)`` while the network's parameters are ``params``.

    Parameters that ``fn`` does not read may be left out.
    """
    named = {f"net.{name}": p for name, p in params.items()}
    tied = _has_tied_weights(cast("nn.Module", net))
    return functional_call(_Holder(net), named, (fn,), tie_weights=tied)


def _has_tied_weights(net: nn.Module) -> bool:
    """Whether a parameter has two names. To look through the network each time would take long."""
    if (known := _tied.get(net)) is None:
        num_names = sum(1 for _ in net.named_parameters(remove_duplicate=False))
        known = _tied[net] = num_names > sum(1 for _ in net.named_parameters())
    return known


_tied: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def check_heads(net: Network, required: Heads) -> None:
    """Raise if the network lacks a head that the rule needs, or has it in the wrong size."""
    present: Heads | None = getattr(net, "head_sizes", None)
    if present is None:
        raise DiscorlError(
            "the agent network does not say which heads it has: build it with "
            "discorl.AgentNet(torso, ..., heads=rule.heads(num_actions))"
        )
    for kind in ("flat", "per_action"):
        have, need = getattr(present, kind), getattr(required, kind)
        for name, size in need.items():
            if name not in have:
                raise DiscorlError(
                    f"the agent network lacks the head '{name}' (size {size}) that the rule needs: "
                    "build the network with heads=rule.heads(num_actions)"
                )
            if have[name] != size:
                raise DiscorlError(
                    f"the agent network's head '{name}' has size {have[name]}, but the rule needs "
                    f"{size}: build the network with heads=rule.heads(num_actions)"
                )


class _Holder(nn.Module):
    """``functional_call`` only calls ``forward``; here that passes the network to a function."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, fn: Callable[[Any], Any]) -> Any:
        return fn(self.net)
