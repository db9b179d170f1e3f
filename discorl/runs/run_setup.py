"""From a configuration to the environment, the rule and the agent of a run."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from discorl import tree
from discorl.agents.agent import Agent, adam_clip, mlp_agent_net
from discorl.agents.compiled import compile_agent
from discorl.config import TrainConfig
from discorl.envs.base import Env
from discorl.envs.registry import make_env
from discorl.errors import DiscorlError
from discorl.ops.moments import MeanFn
from discorl.runs import distributed
from discorl.runs.distributed import Ranks
from discorl.runs.memory import keep_freed_memory
from discorl.runs.rule_choice import RuleChoice, choose_rule
from discorl.types import Params


@dataclass(frozen=True)
class TrainRun:
    """What stays the same through a run. What changes is its ``RunState``."""

    config: TrainConfig
    ranks: Ranks
    env: Env
    agent: Agent
    choice: RuleChoice
    rule_params: Params
    batch_size: int
    """This process's share."""
    across: MeanFn
    """Averages over the processes."""
    console: Console


def set_up(config: TrainConfig, ranks: Ranks, console: Console | None) -> TrainRun:
    """Environment, rule and agent."""
    keep_freed_memory()
    env = make_env(config.task, ranks.shard(config.num_envs, "num_envs"), ranks.device)
    choice = choose_rule(config)
    net = mlp_agent_net(
        env.spec, choice.rule, config.net.torso, config.net.action_lstm, config.net.head_hidden
    )
    optimiser = adam_clip(config.optimiser.learning_rate, config.optimiser.max_abs_update)
    agent = Agent(net, choice.rule, optimiser, config.mask_episode_starts)
    if config.compile:
        if ranks.size > 1:
            raise DiscorlError("--compile is for one process; leave it off under torchrun")
        agent = compile_agent(agent)
    quiet = config.progress == "none" or not ranks.is_first
    return TrainRun(
        config=config,
        ranks=ranks,
        env=env,
        agent=agent,
        choice=choice,
        rule_params=tree.to(choice.params, ranks.device),
        batch_size=ranks.shard(config.batch_size, "batch_size"),
        across=distributed.mean if ranks.size > 1 else lambda x: x,
        console=Console(quiet=True) if quiet else console or Console(),
    )
