"""Train RL agents with a learned update rule, and discover such rules."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("discorl")
except PackageNotFoundError:  # running from a source tree that is not installed
    __version__ = "0+unknown"

from discorl.agents.agent import Agent, adam_clip, agent_net, mlp_agent_net
from discorl.agents.replay import Replay
from discorl.agents.update import update_agent
from discorl.errors import DiscorlError
from discorl.nets.agent_net import AgentNet
from discorl.nets.net_config import NetConfig
from discorl.own_agent import AgentRollout, DiscoTrainer, DiscoUpdateRule, collect_rollout
from discorl.rules import ActorCritic, DiscoRule, PolicyGradient, UpdateRule
from discorl.rules.store import load_rule, save_rule
from discorl.types import AgentOutput, Rollout

__all__ = [
    "ActorCritic",
    "Agent",
    "AgentNet",
    "AgentOutput",
    "AgentRollout",
    "DiscoRule",
    "DiscoTrainer",
    "DiscoUpdateRule",
    "DiscorlError",
    "NetConfig",
    "PolicyGradient",
    "Replay",
    "Rollout",
    "UpdateRule",
    "adam_clip",
    "agent_net",
    "collect_rollout",
    "load_rule",
    "mlp_agent_net",
    "save_rule",
    "update_agent",
]
