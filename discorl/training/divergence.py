"""Watching the loss: a run whose loss is NaN or explodes stops while it can be explained."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from discorl.training.stats import scalars_of
from discorl.types import AgentState, UpdateInfo


@dataclass(frozen=True)
class Divergence:
    """The first update that went wrong."""

    step: int
    scalars: dict[str, float]
    """The numbers of that update."""
    before: dict[str, float]
    """Those of the last good update; empty if there was none."""
    last_good: AgentState
    """The agent before the step."""


class LossGuard:
    """Checks the losses of a step once the next one has acted.

    By then the device has finished them, because acting needed the new parameters: checking does
    not hold up the loop.
    """

    def __init__(self, max_loss: float) -> None:
        self._max_loss = max_loss
        self._step = 0
        self._last_good: AgentState | None = None
        self._watched: list[tuple[list[str], Tensor]] = []
        self._before: dict[str, float] = {}

    def begin(self, step: int, agent: AgentState) -> None:
        """The updates of ``step`` are about to start, from this agent."""
        self._step, self._last_good = step, agent

    def watch(self, info: UpdateInfo) -> None:
        """Note an update."""
        scalars = scalars_of(info)
        self._watched.append((list(scalars), torch.stack(list(scalars.values()))))

    def check(self) -> Divergence | None:
        """What went wrong in the updates noted since the last check, if anything did."""
        watched, self._watched = self._watched, []
        for names, values in watched:
            scalars = dict(zip(names, values.tolist(), strict=True))
            if not all(self.is_sound(name, x) for name, x in scalars.items()):
                assert self._last_good is not None
                return Divergence(self._step, scalars, self._before, self._last_good)
            self._before = scalars
        self._last_good = None
        return None

    def is_sound(self, name: str, x: float) -> bool:
        """Whether a number is finite, and a loss not too large."""
        return math.isfinite(x) and (not name.startswith("loss") or abs(x) <= self._max_loss)


def explain(found: Divergence, guard: LossGuard, learning_rate: float) -> str:
    """What is wrong, since when, and what to try."""
    unsound = {k: x for k, x in found.scalars.items() if not guard.is_sound(k, x)}
    parts = [name.removeprefix("loss/") for name in unsound if name.startswith("loss/")]
    loss = found.scalars["loss"]
    said = f"the loss became {loss:.3g} at step {found.step}"
    if parts:
        said += f", because of its part{'s' if len(parts) > 1 else ''} {', '.join(parts)}"
    elif "loss" not in unsound:
        said = f"{', '.join(unsound)} became {next(iter(unsound.values()))} at step {found.step}"
    if found.before:
        norm = found.before["gradient_norm"]
        said += f" (the update before: loss {found.before['loss']:.3g}, gradient norm {norm:.3g})"
    tips = [f"lower --optimiser.learning-rate (now {learning_rate:g})"]
    if not set(parts) - {"q", "value"} and parts:
        tips.insert(0, "scale or clip the rewards")
    else:
        tips.append("check the scale of observations and rewards")
    if "loss" in unsound and math.isfinite(loss):
        tips.append("raise --max-loss if you expect losses of this size")
    return f"{said}. Try: {'; '.join(tips)}"
