"""What is searched for each rule: the few settings that matter most, around those of the preset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from discorl.rules.store import load_rule
from discorl.training.config import TrainConfig
from discorl.training.keywords import settings_of
from discorl.training.rule_choice import best_at_hand


@dataclass(frozen=True)
class Range:
    """Numbers between two, evenly on a logarithmic scale."""

    low: float
    high: float


@dataclass(frozen=True)
class Choice:
    """One of a few values."""

    values: tuple[Any, ...]


Space = Mapping[str, Range | Choice]
"""What may differ between trials, by the dotted name of the setting."""

SHARED: Space = {"updates_per_step": Choice((1, 2, 4, 8))}
DISCOVERED: Space = {
    "replay_share": Choice((0.5, 0.75, 1.0)),
    "net.zero_values": Choice((False, True)),
}
"""docs/training.md says why: updates and learning rate first, then what values begin with."""
BY_RULE: dict[str, Space] = {
    "actor-critic": {
        "actor_critic.entropy_cost": Range(1e-3, 0.3),
        "returns.discount": Choice((0.97, 0.99, 0.995)),
    },
    "policy-gradient": {
        "policy_gradient.entropy_cost": Range(1e-3, 0.1),
        "returns.discount": Choice((0.97, 0.99, 0.995)),
    },
    "cmpo": {
        "cmpo.target_rate": Range(0.01, 1.0),
        "returns.discount": Choice((0.97, 0.99, 0.995)),
    },
}


def space_for(config: TrainConfig) -> dict[str, Range | Choice]:
    """The space for a rule; it always holds the settings that ``config`` has."""
    name = best_at_hand()[0] if config.rule == "auto" else config.rule
    if name not in BY_RULE:
        load_rule(name)  # an unknown name is an error here, and not in every trial
    rate = config.optimiser.learning_rate
    space: dict[str, Range | Choice] = {"optimiser.learning_rate": Range(rate / 10, rate * 5)}
    for setting, values in {**SHARED, **BY_RULE.get(name, DISCOVERED)}.items():
        now = value_of(config, setting)
        if isinstance(values, Range):
            space[setting] = Range(min(values.low, now), max(values.high, now))
        else:
            space[setting] = Choice(tuple(sorted({*values.values, now})))
    return space


def value_of(config: TrainConfig, setting: str) -> Any:
    """A setting by its dotted name."""
    return reduce(getattr, setting.split("."), config)


def with_values(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """The settings with some others, by their dotted names."""
    changes: dict[str, Any] = {}
    for setting, value in values.items():
        *groups, last = setting.split(".")
        inner = changes
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = value
    return settings_of(config, changes)
