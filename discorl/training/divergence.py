"""Watching the loss: a run whose loss is NaN or explodes stops while it can be explained."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from discorl import tree
from discorl.agents.replay import Replay
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
    slots: Tensor
    """Where the batch lies in the replay."""


class LossGuard:
    """Checks the losses of a step once the next one has acted.

    By then the device has finished them, because acting needed the new parameters: checking does
    not hold up the loop.
    """

    def __init__(self, max_loss: float) -> None:
        self._max_loss = max_loss
        self._step = 0
        self._last_good: AgentState | None = None
        self._watched: list[tuple[list[str], Tensor, Tensor]] = []
        self._before: dict[str, float] = {}

    def begin(self, step: int, agent: AgentState) -> None:
        """The updates of ``step`` are about to start, from this agent."""
        self._step, self._last_good = step, agent

    def watch(self, info: UpdateInfo, slots: Tensor) -> None:
        """Note an update, and where in the replay its batch lies."""
        scalars = scalars_of(info)
        self._watched.append((list(scalars), torch.stack(list(scalars.values())), slots))

    def check(self) -> Divergence | None:
        """What went wrong in the updates noted since the last check, if anything did."""
        watched, self._watched = self._watched, []
        for names, values, slots in watched:
            scalars = dict(zip(names, values.tolist(), strict=True))
            if not all(self.is_sound(name, x) for name, x in scalars.items()):
                assert self._last_good is not None
                return Divergence(self._step, scalars, self._before, self._last_good, slots)
            self._before = scalars
        self._last_good = None
        return None

    def is_sound(self, name: str, x: float) -> bool:
        """Whether a number is finite, and a loss not too large."""
        return math.isfinite(x) and (not name.startswith("loss") or abs(x) <= self._max_loss)


Extremes = dict[str, tuple[float, int]]
"""The number farthest from 0 among the rewards and among the observations of a batch, and the step
in which it was collected. Observations that are bytes cannot be extreme."""


def extremes(found: Divergence, replay: Replay) -> Extremes:
    """What stands out in the batch of the bad update; the replay must be as it was then."""
    batch = replay.take(found.slots)
    steps = found.step - replay.ages(found.slots)
    seen = [x for x in tree.leaves(batch.observations) if x.is_floating_point()]
    return most_extreme(
        {name: _largest(x, steps)}
        for name, x in (("reward", batch.rewards), *(("observation", x) for x in seen))
    )


def most_extreme(found: Iterable[Extremes]) -> Extremes:
    """Of several batches, such as those of all processes."""
    most: Extremes = {}
    for name, (x, step) in (item for one in found for item in one.items()):
        if name not in most or abs(x) > abs(most[name][0]):
            most[name] = (x, step)
    return most


def _largest(x: Tensor, steps: Tensor) -> tuple[float, int]:
    """The number in ``x`` [T, B, ...] that is farthest from 0, and its trajectory's step."""
    each = x.transpose(0, 1).flatten(1)  # [B, ...]
    place = int(each.abs().argmax())
    return float(each.flatten()[place]), int(steps[place // each.shape[1]])


def explain(
    found: Divergence,
    guard: LossGuard,
    batch: Extremes,
    learning_rate: float,
    rewards_can_be_scaled: bool,
) -> str:
    """What is wrong, since when, what may have caused it, and what to try."""
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
    if rewards_can_be_scaled:
        tips.append("set --reward-scale or --reward-clip")
    if "loss" in unsound and math.isfinite(loss):
        tips.append("raise --max-loss if you expect losses of this size")
    tips.append("--skip-replay to leave behind what is in the replay")
    held = [
        f"most extreme {name} in its batch was {x:.3g}, collected at step {step}"
        for name, (x, step) in batch.items()
    ]
    return f"{said}; the {', the '.join(held)}. Try: {'; '.join(tips)}"
