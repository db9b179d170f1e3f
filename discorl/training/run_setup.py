"""From a configuration to the environment, the rule and the agent of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from discorl import tree
from discorl.agents.agent import Agent
from discorl.agents.compiled import compile_agent
from discorl.envs.base import Env
from discorl.envs.registry import make_env
from discorl.envs.suites import default_settings
from discorl.errors import DiscorlError
from discorl.ops.moments import MeanFn
from discorl.runs import distributed
from discorl.runs.distributed import Ranks
from discorl.runs.malloc import keep_freed_memory
from discorl.training.build import make_agent
from discorl.training.config import TrainConfig
from discorl.training.rule_choice import RuleChoice, choose_rule
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


def set_up(config: TrainConfig, ranks: Ranks, console: Console | None, env: Any) -> TrainRun:
    """Environment (``env`` if the user brought one), rule and agent."""
    keep_freed_memory()
    if env is None and config.env.suite is None:  # so that the run's folder says all of it
        suite = default_settings(config.task)
        config = replace(config, env=replace(config.env, suite=suite))
    env = _environment(config, ranks, env)
    config = replace(config, num_envs=env.num_envs * ranks.size)
    choice = choose_rule(config)
    agent = make_agent(config, env.spec, choice.rule)
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


def _environment(config: TrainConfig, ranks: Ranks, env: Any) -> Env:
    """The environment of a task, or the one that the user brought."""
    num_envs = ranks.shard(config.num_envs, "num_envs")
    if env is None:
        return make_env(config.task, num_envs, ranks.device, config.env, config.frame_stack)
    from discorl.envs.gymnasium import as_env  # imported late: Gymnasium loads slowly

    return as_env(env, num_envs, ranks.device, config.env, f"'{config.task}'")
