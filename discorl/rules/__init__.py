"""Update rules: the discovered one and hand-written baselines, under one protocol."""

from discorl.rules.actor_critic import ActorCritic
from discorl.rules.base import UpdateRule
from discorl.rules.cmpo import CMPO
from discorl.rules.disco import DiscoRule
from discorl.rules.policy_gradient import PolicyGradient

__all__ = ["CMPO", "ActorCritic", "DiscoRule", "PolicyGradient", "UpdateRule"]
