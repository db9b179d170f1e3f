"""What changes a trainer's agent: an optimiser of this package, or one of torch's."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from discorl.errors import DiscorlError
from discorl.optim import Transform
from discorl.own_agent.update_rule import PREFIX, keep_gradients
from discorl.types import AgentState, Params, UpdateInfo

TORCH = "torch_optimiser"
"""The entry of a trainer's state with that of an optimiser of torch's."""


class OwnOptimiser:
    """A pair of pure functions; its state is the trainer's to save."""

    def __init__(self, transform: Transform, params: Params) -> None:
        self.transform = transform
        self.state: Any = transform.init(params)

    def apply(self, params: Params, state: AgentState, info: UpdateInfo) -> float:
        """Write an update, as ``update_agent`` made it, into the agent; the norm of the change."""
        torch._foreach_copy_(list(params.values()), [state.params[name] for name in params])
        self.state = state.optimiser
        return float(info.update_norm)

    def state_dict(self) -> dict[str, Any]:
        """What ``state`` does not hold: nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is nothing to load."""


class TorchOptimiser:
    """One of torch's, which steps the agent's parameters itself, by the gradient of the rule."""

    transform = keep_gradients
    state: Any = ()

    def __init__(self, optimiser: torch.optim.Optimizer, agent: nn.Module) -> None:
        self.optimiser = optimiser
        held = {id(p) for group in optimiser.param_groups for p in group["params"]}
        self._params = {PREFIX + name: p for name, p in agent.named_parameters() if p.requires_grad}
        for name, p in self._params.items():
            if id(p) not in held:
                raise DiscorlError(
                    f"the optimiser does not have the agent's parameter "
                    f"'{name.removeprefix(PREFIX)}': make it from agent.parameters()"
                )

    def apply(self, params: Params, state: AgentState, info: UpdateInfo) -> float:
        """Step by the gradients that ``keep_gradients`` kept; the norm of the change."""
        del info
        (gradients,) = state.optimiser
        before = {name: p.clone() for name, p in params.items()}
        for name, p in self._params.items():
            p.grad = gradients[name].detach().clone()
        try:
            self.optimiser.step()
        finally:
            for p in self._params.values():
                p.grad = None
        norm = torch.stack([(p - before[name]).norm() for name, p in params.items()]).norm()
        if not bool(norm.isfinite()):
            torch._foreach_copy_(list(params.values()), list(before.values()))
        return float(norm)

    def state_dict(self) -> dict[str, Any]:
        """What the optimiser remembers, and its settings."""
        return {TORCH: self.optimiser.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it from a trainer's state; if that does not fit, nothing is changed."""
        try:
            self.optimiser.load_state_dict(state[TORCH])
        except (ValueError, KeyError, TypeError) as e:
            raise DiscorlError(f"the saved optimiser does not fit this one: {e}") from None


def check_same_kind(optimiser: OwnOptimiser | TorchOptimiser, state: dict[str, Any]) -> None:
    """Raise if a trainer's state is from one with the other kind of optimiser."""
    is_torchs = isinstance(optimiser, TorchOptimiser)
    if is_torchs != (TORCH in state):
        saved, do = ("the trainer's own optimiser", "without optimiser=")
        if not is_torchs:
            saved, do = ("an optimiser of torch's", "with that optimiser, too")
        raise DiscorlError(f"the state was saved with {saved}: make the trainer {do}")


def make_optimiser(
    given: Transform | torch.optim.Optimizer | None,
    default: Transform,
    agent: nn.Module,
    params: Params,
) -> OwnOptimiser | TorchOptimiser:
    """The user's, or the one that the trainer makes by ``default``."""
    if given is None or isinstance(given, Transform):
        return OwnOptimiser(given or default, params)
    if isinstance(given, torch.optim.LBFGS):
        raise DiscorlError(
            "LBFGS asks for the loss several times a step, but the rule remembers what it has "
            "seen: use an optimiser that steps once, such as torch.optim.Adam"
        )
    if isinstance(given, torch.optim.Optimizer):
        return TorchOptimiser(given, agent)
    what = given.__name__ if isinstance(given, type) else f"a {type(given).__name__}"
    raise DiscorlError(
        f"the optimiser is {what}: pass one of torch's, as in "
        "torch.optim.Adam(agent.parameters(), lr=1e-3), or a discorl.optim.Transform"
    )
