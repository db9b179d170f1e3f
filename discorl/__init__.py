"""Train RL agents with a learned update rule, and discover such rules.

What this module exports is the stable API. Everything else may change between minor versions.
"""

import os
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if sys.argv[:1] == ["-m"] and any(arg.endswith("discorl") for arg in sys.orig_argv[1:]):
    # For python -m the current folder comes first, and it may be a run from elsewhere with a
    # torch.py in it. The command line puts it last, unless it is the run in question.
    sys.path[:1] = [] if sys.path[0] == os.getcwd() else sys.path[:1]

try:
    __version__ = version("discorl")
except PackageNotFoundError:  # running from a source tree that is not installed
    __version__ = "0+unknown"

if TYPE_CHECKING:
    from discorl.agents.agent import Agent, adam_clip, agent_net, mlp_agent_net
    from discorl.agents.replay import Replay
    from discorl.agents.update import update_agent
    from discorl.comparison.compare import compare
    from discorl.discovery.config import DiscoverConfig
    from discorl.discovery.discover import discover
    from discorl.discovery.presets import discovery_preset
    from discorl.envs.registration import register_task
    from discorl.errors import DiscorlError
    from discorl.nets.agent_net import AgentNet
    from discorl.nets.net_config import NetConfig
    from discorl.own_agent import AgentRollout, DiscoTrainer, DiscoUpdateRule, collect_rollout
    from discorl.rules import CMPO, ActorCritic, DiscoRule, PolicyGradient, UpdateRule
    from discorl.rules.store import load_rule, save_rule
    from discorl.runs.threads import ThreadTuner
    from discorl.training import presets
    from discorl.training.callback import RunView
    from discorl.training.config import TrainConfig
    from discorl.training.evaluate import evaluate
    from discorl.training.train import train
    from discorl.training.trained_agent import load_agent
    from discorl.types import AgentOutput, Rollout

# Everything is imported when it is first asked for: the programs bring plots, Gymnasium and
# progress bars with them, and 'discorl --help' does not even need torch.
_HOMES = {
    "agents.agent": ("Agent", "adam_clip", "agent_net", "mlp_agent_net"),
    "agents.replay": ("Replay",),
    "agents.update": ("update_agent",),
    "comparison.compare": ("compare",),
    "discovery.config": ("DiscoverConfig",),
    "discovery.discover": ("discover",),
    "discovery.presets": ("discovery_preset",),
    "envs.registration": ("register_task",),
    "errors": ("DiscorlError",),
    "nets.agent_net": ("AgentNet",),
    "nets.net_config": ("NetConfig",),
    "own_agent": ("AgentRollout", "DiscoTrainer", "DiscoUpdateRule", "collect_rollout"),
    "rules": ("CMPO", "ActorCritic", "DiscoRule", "PolicyGradient", "UpdateRule"),
    "rules.store": ("load_rule", "save_rule"),
    "runs.threads": ("ThreadTuner",),
    "training": ("presets",),
    "training.callback": ("RunView",),
    "training.config": ("TrainConfig",),
    "training.evaluate": ("evaluate",),
    "training.train": ("train",),
    "training.trained_agent": ("load_agent",),
    "types": ("AgentOutput", "Rollout"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "CMPO",
    "ActorCritic",
    "Agent",
    "AgentNet",
    "AgentOutput",
    "AgentRollout",
    "DiscoRule",
    "DiscoTrainer",
    "DiscoUpdateRule",
    "DiscorlError",
    "DiscoverConfig",
    "NetConfig",
    "PolicyGradient",
    "Replay",
    "Rollout",
    "RunView",
    "ThreadTuner",
    "TrainConfig",
    "UpdateRule",
    "adam_clip",
    "agent_net",
    "collect_rollout",
    "compare",
    "discover",
    "discovery_preset",
    "evaluate",
    "load_agent",
    "load_rule",
    "mlp_agent_net",
    "presets",
    "register_task",
    "save_rule",
    "train",
    "update_agent",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        home = f"discorl.{_HOME_OF[name]}"
        if name == "presets":  # a module itself
            import_module(f"{home}.presets")
        found = getattr(import_module(home), name)
        globals()[name] = found  # the next look finds it without this function
        return found
    if not name.startswith("_") and find_spec(f"discorl.{name}"):  # a room, such as discorl.nets
        return import_module(f"discorl.{name}")
    raise AttributeError(f"module 'discorl' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
