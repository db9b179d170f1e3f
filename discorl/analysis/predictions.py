"""What agents predict as they play: the outputs that several analyses look at."""

from __future__ import annotations

from torch import Tensor

from discorl.agents.network import with_params
from discorl.analysis.lives import Life
from discorl.types import Params, Rollout

OUTPUTS = {"y": ("y",), "z": ("z_a",), "policy": ("logits",), "value": ("q_a", "v")}
"""What is looked at, and the predictions that it may come from: of an action, or of the state."""


def predicted(life: Life, params: Params, rollout: Rollout) -> dict[str, Tensor]:
    """Logits of each output that there is, z and value for the action taken. [S, B, ...] each"""
    found = with_params(life.agent.net, params, lambda net: net.predict(rollout))
    outputs = {
        name: next((x for field in fields if (x := getattr(found, field, None)) is not None), None)
        for name, fields in OUTPUTS.items()
    }
    num_steps = len(rollout.actions) - 1  # nothing is predicted of the last one's action
    return {
        name: logits[:num_steps]
        for name, logits in outputs.items()
        if logits is not None and logits.shape[-1] > 1
    }
