"""Settings of environments that come from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Literal

from discorl.envs.suites.suite_settings import SuiteSettings
from discorl.errors import DiscorlError


@dataclass(frozen=True)
class EnvConfig:
    """Environments from Gymnasium and other packages. The names also work without 'env.'."""

    truncation: Literal["bootstrap", "terminate"] = "bootstrap"
    """What a time limit does: bootstrap adds the discounted value of the state it cut off to the
    last reward; terminate ends the episode for good, as the reference does. Rules without a value
    always terminate."""
    workers: Literal["sync", "async"] = "sync"
    """sync steps the copies one after the other; async gives each a process of its own, which pays
    where a step takes more than about a millisecond."""
    autoreset: Literal["same-step", "next-step"] = "same-step"
    """When a copy resets. next-step spends a time step on it, which is left out of learning."""
    action_bins: int = 5
    """Values that each dimension of a continuous action can take, from its lowest to its
    highest. The agent chooses among all their combinations."""
    normalize_observations: bool = False
    """Scale vector observations by their running mean and deviation, kept with the agent."""
    image_layout: Literal["auto", "channels-first", "channels-last"] = "auto"
    """Which axis of an image holds the channels; auto takes the first if it is shorter than the
    last, else the last."""
    reward_scale: float = 1.0
    """Factor of every reward. Episode returns are reported without it."""
    reward_clip: float | None = None
    """Clip rewards to between minus this and this, after scaling. Returns are reported without."""
    suite: SuiteSettings | None = None
    """Options of the task's suite, such as sticky actions; None for its defaults."""

    def __post_init__(self) -> None:
        if self.action_bins < 2:
            raise DiscorlError(f"env: action_bins must be at least 2, not {self.action_bins}")
        if not math.isfinite(self.reward_scale) or self.reward_scale == 0:
            raise DiscorlError(f"env: reward_scale must be a number but 0, not {self.reward_scale}")
        if self.reward_clip is not None and not 0 < self.reward_clip < math.inf:
            raise DiscorlError(f"env: reward_clip must be a number above 0, not {self.reward_clip}")


MAKING = ("workers", "autoreset")
"""Settings of how copies of an environment are made."""
OURS = ("truncation", "suite")
"""What a time limit does is up to training, and the options of a suite have a check of theirs."""


def check_unchanged(
    options: EnvConfig | None, name: str, settings: Collection[str] | None = None
) -> None:
    """Raise if one of the settings, or of all but ``OURS``, is changed, which ``name`` ignores."""
    defaults = EnvConfig()
    if settings is None:
        settings = [field.name for field in fields(EnvConfig) if field.name not in OURS]
    for setting in settings:
        if options is not None and getattr(options, setting) != getattr(defaults, setting):
            raise DiscorlError(
                f"--{setting.replace('_', '-')} does nothing for {name}: leave it away"
            )
