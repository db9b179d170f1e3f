"""What rules without parameters have in common."""

from __future__ import annotations

from typing import ClassVar

import torch

from discorl.ops.moments import init_moments
from discorl.types import Params, Reader, RuleState


class HandWritten:
    """Nothing to discover, nothing to read of each action, and only moments to remember."""

    is_stepwise: ClassVar[bool] = True
    """The loss of a step is a function of that step's predictions alone."""

    def init_params(self, generator: torch.Generator) -> Params:
        """None."""
        del generator
        return {}

    def init_state(self, agent_params: Params) -> RuleState:
        """Moments of advantages and of errors."""
        device = next(iter(agent_params.values())).device
        return RuleState(init_moments(device), init_moments(device))

    def reader(self, rule_params: Params) -> Reader | None:
        """None: the loss says it all."""
        del rule_params
        return None
