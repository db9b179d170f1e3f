"""Settings of environments that come from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from discorl.bounds import check_at_least
from discorl.envs.named_code import NAME
from discorl.envs.suites.suite_settings import SuiteSettings
from discorl.errors import DiscorlError

MAX_ACTION_BINS = 10_000


@dataclass(frozen=True)
class EnvConfig:
    """Environments from Gymnasium and other packages. The names also work without 'env.'."""

    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments to make the environment with, as JSON: '{"continuous": true}'."""
    wrappers: tuple[str, ...] = ()
    """Functions or classes that wrap each copy of the environment, each as MODULE:FUNCTION; the
    first is the innermost."""
    truncation: Literal["bootstrap", "terminate"] = "bootstrap"
    """What happens at a time limit: bootstrap adds the discounted value of the final state to the
    last reward; terminate treats it as a real end, as the reference does. Rules without a value
    function always terminate."""
    workers: Literal["sync", "async"] = "sync"
    """sync steps the copies in turn; async runs each in its own process, which pays off when a
    step takes more than about a millisecond."""
    autoreset: Literal["same-step", "next-step"] = "same-step"
    """When a copy resets: in the step that ends the episode, or in an extra step that is left out
    of learning."""
    exact_resume: bool = False
    """Resume in the middle of episodes: each has a seed of its own, and is played again from it by
    the same actions. That takes an environment in which nothing else matters; if one shows
    something else than before, new episodes begin, and a message says so."""
    action_bins: int = 5
    """How many evenly spaced values each dimension of a continuous action can take, from its
    lowest to its highest. The agent chooses among all combinations."""
    normalize_observations: bool = False
    """Normalise vector observations by their running mean and standard deviation, which are saved
    with the agent."""
    image_layout: Literal["auto", "channels-first", "channels-last"] = "auto"
    """Which axis of an image holds the channels; auto picks the first if it is shorter than the
    last, otherwise the last."""
    normalize_rewards: bool = False
    """Divide rewards by the running standard deviation of their discounted sum, and clip them to
    plus or minus 10, before scaling. Reported episode returns are as the environment gave them."""
    reward_scale: float = 1.0
    """Multiply every reward by this. Reported episode returns are unscaled."""
    reward_clip: float | None = None
    """Clip rewards to plus or minus this, after scaling. Reported episode returns are unclipped."""
    suite: SuiteSettings | None = None
    """Options of the task's suite, such as sticky actions; None uses the suite's defaults."""

    def __post_init__(self) -> None:
        check_at_least(2, "env: ", self, "action_bins", most=MAX_ACTION_BINS)
        if not math.isfinite(self.reward_scale) or self.reward_scale == 0:
            raise DiscorlError(
                f"env: reward_scale must be a number other than 0, not {self.reward_scale}"
            )
        if self.reward_clip is not None and not 0 < self.reward_clip < math.inf:
            raise DiscorlError(f"env: reward_clip must be a number above 0, not {self.reward_clip}")
        if self.exact_resume and self.autoreset != "same-step":
            raise DiscorlError("env: exact_resume needs --autoreset same-step")
        if not all(isinstance(name, str) for name in self.kwargs):
            raise DiscorlError("env: kwargs must be named, as in {'continuous': True}")
        for name in self.wrappers:
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise DiscorlError(f"env: a wrapper is written MODULE:FUNCTION, not {name!r:.80}")


BY_NAME = ("kwargs", "wrappers")
"""Settings of an environment that has a name and is made here."""
MAKING = ("workers", "autoreset", "exact_resume")
"""Settings of how copies of an environment are made."""
OURS = ("truncation", "suite")
"""Not checked here: training handles time limits, and suite options have their own check."""


def of_other_envs() -> list[str]:
    """Settings that tasks on tensors do not have."""
    return [field.name for field in fields(EnvConfig) if field.name not in OURS]


def check_unchanged(
    options: EnvConfig | None, name: str, settings: Collection[str] | None = None
) -> None:
    """Raise if a setting that ``name`` ignores was changed; by default, all but ``OURS``."""
    defaults = EnvConfig()
    for setting in of_other_envs() if settings is None else settings:
        if options is not None and getattr(options, setting) != getattr(defaults, setting):
            raise DiscorlError(f"--{setting.replace('_', '-')} does nothing for {name}: remove it")
