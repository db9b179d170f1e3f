"""From a configuration to the environment, the agent, its optimiser and its replay."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from discorl import optim
from discorl.agents.action_limit import check_num_actions
from discorl.agents.agent import Agent, adam_clip, agent_net
from discorl.agents.compiled import compile_agent
from discorl.agents.replay import Replay
from discorl.envs.base import Env, set_timeout
from discorl.envs.registry import make_env
from discorl.errors import DiscorlError
from discorl.rules.base import UpdateRule
from discorl.runs.distributed import Ranks
from discorl.runs.imports import importing_for
from discorl.training.config import TrainConfig
from discorl.types import EnvSpec


def make_environment(
    config: TrainConfig, ranks: Ranks, env: Any = None, resumed: Path | None = None
) -> Env:
    """This process's share of the environments of a task, or of those that the user supplied.

    ``resumed`` is the folder of the run whose config.json named the task.
    """
    num_envs = ranks.shard(config.num_envs, "num_envs")
    return make_copies(num_envs, config, ranks.device, env, resumed)


def make_copies(
    num_envs: int,
    config: TrainConfig,
    device: torch.device,
    env: Any = None,
    resumed: Path | None = None,
) -> Env:
    """Any number of copies, for any purpose; ``env`` may also be the name of a task."""
    if env is None:
        wrappers = config.env.wrappers
        with importing_for(resumed, config.task, wrappers) if resumed else nullcontext():
            made = make_env(config.task, num_envs, device, config.env, config.frame_stack)
    else:
        options = config.env
        if resumed:  # it replaces the one that the run made by name
            options = replace(options, kwargs={}, wrappers=())
        if isinstance(env, str):
            made = make_env(env, num_envs, device, options, config.frame_stack)
        else:
            from discorl.envs.gymnasium import as_env  # imported late: Gymnasium loads slowly

            made = as_env(env, num_envs, device, options, f"'{config.task}'")
    set_timeout(made, config.timeout_minutes)
    return made


PYTHON_ENV = "python_env"
"""The entry of config.json that says that the environment was given from Python."""


def check_env_is_given(folder: Path, content: dict[str, Any], env: Any) -> None:
    """Raise if only the user can supply the environment of a run, by its config.json."""
    if env is None and content.get(PYTHON_ENV):
        raise DiscorlError(
            f"{folder} was trained on an environment that was given from Python, and needs it "
            "again: pass env= to load_agent or resume, or on the command line "
            "--task MODULE:FUNCTION, a function of yours that makes it"
        )


def make_agent(config: TrainConfig, spec: EnvSpec, rule: UpdateRule) -> Agent:
    """The agent that ``config`` describes, for an environment and a rule; not yet compiled."""
    check_num_actions(rule, spec.num_actions, config.rollout_length, config.batch_size)
    net = agent_net(spec, rule, config.net)
    kernels, bf16 = config.kernels == "on", config.precision == "bf16"
    return Agent(net, rule, make_optimiser(config), config.burn_in, kernels, bf16)


def make_optimiser(config: TrainConfig) -> optim.Transform:
    """Adam with the configuration's clip, weight decay and learning rate."""
    c = config.optimiser
    return adam_clip(learning_rate(config), c.max_abs_update, c.weight_decay)


def learning_rate(config: TrainConfig) -> float | optim.Schedule:
    """The learning rate over the updates of a run; the warm-up is given in environment steps."""
    c = config.optimiser
    warmup = round(c.warmup_steps * config.updates_per_step / config.env_steps_per_step)
    if c.schedule == "cosine":
        total = config.steps * config.updates_per_step
        return optim.warmup_cosine(c.learning_rate, warmup, total)
    return optim.warmup_constant(c.learning_rate, warmup) if warmup else c.learning_rate


def make_replay(config: TrainConfig, ranks: Ranks) -> Replay:
    """An empty replay: this process's share of the configured size."""
    return Replay(ranks.share(config.replay_trajectories), config.frame_stack)


def compiled(agent: Agent, config: TrainConfig, ranks: Ranks) -> Agent:
    """The agent, compiled if asked for."""
    if config.compile and ranks.size > 1:
        raise DiscorlError("--compile only works with one process; leave it out under torchrun")
    return compile_agent(agent) if config.compile else agent
