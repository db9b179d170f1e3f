"""An agent whose first-order learning is compiled where that pays off.

The targets and the optimiser are many small operations, which torch.compile merges. The network is
large matrix products, which no compiler improves; they, and what comes between them, above all
softmax, are left to our own kernels (``ops/native``), for agents that have them. Nothing that a
meta-gradient crosses may be compiled: torch.compile has no double backward.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch

from discorl.agents.agent import Agent
from discorl.agents.compiler_cache import use_private_cache
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
    """The agent with compiled targets and optimiser, or unchanged if there is no compiler.

    The first updates take up to a minute longer. The numbers differ from the uncompiled ones only
    by rounding. Raises if what was compiled would be kept where other users can write.
    """
    use_private_cache()
    if problem := _problem():
        warnings.warn(f"running uncompiled: {problem}", stacklevel=2)
        return agent
    rule: Any = CompiledRule(agent.rule, torch.compile(agent.rule.targets))
    optimiser = Transform(agent.optimiser.init, torch.compile(agent.optimiser.update))
    return replace(agent, rule=rule, optimiser=optimiser)


def _problem() -> str | None:
    """What is wrong with torch.compile here; None if it does something small as it should."""
    try:
        result = torch.compile(lambda x: x.sin() + 1)(torch.zeros(2))
    except Exception as e:
        said = next(iter(str(e).splitlines()), type(e).__name__)
        if "InvalidCxxCompiler" in said:
            return "no working C++ compiler was found (install g++, or set CXX)"
        return f"torch.compile failed ({said:.200})"
    return None if float(result.sum()) == 2.0 else "torch.compile computes wrong numbers"
