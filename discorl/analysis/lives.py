"""Agents at several ages, from the checkpoints of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from discorl.agents.acting import act
from discorl.agents.agent import Agent
from discorl.envs.base import TensorEnv, close_env, is_tensor_env
from discorl.errors import DiscorlError
from discorl.runs import distributed
from discorl.runs.checkpoint import CheckpointFolder, load
from discorl.runs.program import read_metrics
from discorl.training.config import TrainConfig
from discorl.training.rule_choice import read_config
from discorl.training.state import new_state
from discorl.training.train import Training
from discorl.types import AgentState, EnvSpec, Params, Rollout

NUM_ASKED = 64
"""Trajectories of a replay that rules are asked about."""
NUM_PLAYED, NUM_PLAYED_IN_ALL = 120, 2000
"""Fresh time steps in each copy of the environment, and together, at least."""


@dataclass(frozen=True)
class Age:
    """An agent at one moment of its life."""

    step: int
    """Training steps done."""
    state: AgentState
    batch: Rollout
    """What it could learn from next: trajectories of its replay."""
    played: Rollout
    """What its policy does now."""
    env_state: Any = None
    """Of its environment just before it played."""


@dataclass(frozen=True)
class Life:
    """One agent, from its birth or first checkpoint on."""

    label: str
    """The rule that trained it."""
    task: str
    seed: int
    agent: Agent
    rule_params: Params
    ages: Sequence[Age]
    config: TrainConfig
    """How it was trained."""
    spec: EnvSpec | None = None
    """What the environment shows; None if nobody knows."""
    num_stacked: int = 1
    """Frames in an observation of a suite that stacks them."""
    env: TensorEnv | None = None
    """The environment, if it lives on tensors."""
    returns: Mapping[int, float] = field(default_factory=dict)
    """Mean return of the last episodes by training step, as the run has logged it."""


def read_life(folder: Path, label: str = "") -> Life:
    """The agent of a run at each of its checkpoints, and newborn."""
    steps = CheckpointFolder(folder / "checkpoints").steps()
    if not steps:
        raise DiscorlError(
            f"{folder} has no checkpoints to take agents from: train with "
            "--checkpoint.every-steps, and --checkpoint.keep for several ages"
        )
    config, before = read_config(folder)
    if every := config.checkpoint.every_steps:  # others were saved because the run was stopped
        steps = [s for s in steps if s % every == 0 or s == steps[-1]]
    with distributed.joined("cpu") as ranks:
        program = Training(replace(config, device="cpu"), ranks)
        program.begin(before)
        try:
            ages = [_newborn(program)]
            for step in steps:
                program.state = new_state(program.config, program.agent, program.env, ranks)
                program.restore(load(CheckpointFolder(folder / "checkpoints").path(step)))
                ages.append(_age(program))
        finally:
            close_env(program.env)
    return Life(
        label or program.choice.name,
        *(config.task, config.seed, program.agent, program.rule_params, ages, config),
        spec=program.env.spec,
        num_stacked=config.frame_stack,
        env=program.env if is_tensor_env(program.env) else None,
        returns=_returns(folder),
    )


def _returns(folder: Path) -> dict[int, float]:
    """What is left of the log of a run: it is not needed for the agents."""
    if not (folder / "metrics.jsonl").exists():
        return {}
    return {row["step"]: row["return"] for row in read_metrics(folder) if "return" in row}


def _newborn(program: Training) -> Age:
    """Before the first update, with a replay that is just full enough for it."""
    state = program.state
    while len(state.replay) < program.batch_size:
        rollout, state.acting = _act(program, program.config.rollout_length)
        state.replay.add(rollout)
    return _age(program)


def _age(program: Training) -> Age:
    state = program.state
    generator = torch.Generator().manual_seed(program.config.seed)
    batch = state.replay.sample(NUM_ASKED, generator, program.num_fresh)
    env_state = state.acting.env_state
    in_all = -(-NUM_PLAYED_IN_ALL // program.config.num_envs)
    played, _ = _act(program, max(NUM_PLAYED, in_all, program.config.rollout_length))
    return Age(state.step, state.agent, batch, played, env_state)


def _act(program: Training, num_steps: int):
    state = program.state
    return act(program.agent.net, state.agent.params, program.env, state.acting, num_steps)
