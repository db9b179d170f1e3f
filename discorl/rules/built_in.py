"""The rules that are written in Python rather than kept in a file, by name."""

from __future__ import annotations

from typing import NamedTuple

from discorl.rules.actor_critic import ActorCritic, ActorCriticSettings
from discorl.rules.cmpo import CMPO, CMPOSettings
from discorl.rules.policy_gradient import PolicyGradient, PolicyGradientSettings

CMPO_RULE = "cmpo"
ACTOR_CRITIC = "actor-critic"
POLICY_GRADIENT = "policy-gradient"


class BuiltIn(NamedTuple):
    """A rule without learnt parameters."""

    rule: type[CMPO] | type[ActorCritic] | type[PolicyGradient]
    settings: type[CMPOSettings] | type[ActorCriticSettings] | type[PolicyGradientSettings]
    """Those of its own; returns and the like it shares with all rules."""
    description: str


BUILT_IN = {
    CMPO_RULE: BuiltIn(
        CMPO,
        CMPOSettings,
        "the strong hand-written baseline: policies moved by clipped advantages",
    ),
    ACTOR_CRITIC: BuiltIn(
        ActorCritic, ActorCriticSettings, "hand-written baseline: V-trace actor-critic"
    ),
    POLICY_GRADIENT: BuiltIn(
        PolicyGradient,
        PolicyGradientSettings,
        "hand-written baseline: policy gradient without a critic",
    ),
}
