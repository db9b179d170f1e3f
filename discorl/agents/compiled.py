"""An agent whose first-order learning is compiled where that pays.

The targets and the optimiser are many small operations, which a compiler merges. The network is
large matrix products, which it cannot improve, and the losses have gradients of their own. Nothing
that a meta-gradient crosses may be compiled: torch.compile has no double backward.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch

from discorl.agents.agent import Agent
from discorl.optim import Transform
from discorl.rules.base import UpdateRule


@dataclass(frozen=True)
class CompiledRule:
    """A rule whose ``targets`` is compiled; everything else is the rule's own."""

    rule: UpdateRule
    targets: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rule, name)


def compile_agent(agent: Agent) -> Agent:
    """The agent with compiled targets and optimiser, or as it was if there is no compiler.

    The first updates take up to a minute longer. The numbers differ from the uncompiled ones by
    rounding only.
    """
    if not _compiler_works():
        warnings.warn("no working C++ compiler was found; going on uncompiled", stacklevel=2)
        return agent
    rule: Any = CompiledRule(agent.rule, torch.compile(agent.rule.targets))
    optimiser = Transform(agent.optimiser.init, torch.compile(agent.optimiser.update))
    return replace(agent, rule=rule, optimiser=optimiser)


def _compiler_works() -> bool:
    """Try it on something small."""
    try:
        return float(torch.compile(lambda x: x.sin() + 1)(torch.zeros(2)).sum()) == 2.0
    except Exception:
        return False
