"""From a run's folder back to the agent that it trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from discorl.agents.agent import agent_net
from discorl.envs.base import Env
from discorl.envs.registry import make_env
from discorl.errors import DiscorlError
from discorl.runs.files import load_params
from discorl.training.config import TrainConfig
from discorl.training.rule_choice import choose_rule
from discorl.training.run_config import read_config
from discorl.types import EnvSpec, TimeStep


@dataclass(frozen=True)
class LoadedAgent:
    """A trained agent, ready to act."""

    folder: Path
    config: TrainConfig
    rule_name: str
    net: nn.Module
    device: torch.device

    def make_env(self, num_envs: int) -> Env:
        """Copies of the environment that the agent was trained on."""
        return make_run_env(self.folder, self.config, num_envs, self.device)


def load_agent(folder: Path | str, device: torch.device | str = "cpu") -> LoadedAgent:
    """Rebuild the agent of a run from config.json and agent.npz."""
    folder, device = Path(folder), torch.device(device)
    config, content = read_config(folder)
    params = load_params(folder / "agent.npz")
    net = build_net(make_run_env(folder, config, 1, device).spec, config)
    try:
        net.load_state_dict(params)
    except RuntimeError as e:
        reason = str(e).splitlines()[-1].strip()
        raise DiscorlError(
            f"{folder / 'agent.npz'} does not fit the network that config.json describes: {reason}"
        ) from None
    return LoadedAgent(folder, config, content["rule"], net.to(device).eval(), device)


def build_net(spec: EnvSpec, config: TrainConfig) -> nn.Module:
    """The network of a run, before its parameters are loaded."""
    return agent_net(spec, choose_rule(config).rule, config.net)


def make_run_env(folder: Path, config: TrainConfig, num_envs: int, device: torch.device) -> Env:
    """Copies of a run's environment, with the settings of the run."""
    env = make_env(config.task, num_envs, device, config.env, config.frame_stack)
    return prepare_env(folder, env)


def prepare_env(folder: Path, env: Env) -> Env:
    """Give an environment what it had learnt in training, such as the scale of observations."""
    memory = folder / "env.npz"
    own: Any = env
    if memory.exists() and hasattr(env, "load_state_dict"):
        own.load_state_dict(load_params(memory))
    elif hasattr(env, "state_dict") and own.state_dict():
        raise DiscorlError(
            f"{folder} has no env.npz, the scale of the observations that the agent was trained "
            "with: go on with the run (discorl train --resume) until it ends or is stopped"
        )
    if (normaliser := getattr(env, "normaliser", None)) is not None:
        normaliser.frozen = True  # an evaluation learns nothing
    return env


class Policy:
    """Chooses actions: the likeliest, or a draw from the agent's policy."""

    def __init__(self, agent: LoadedAgent, greedy: bool, generator: torch.Generator) -> None:
        self._net: Any = agent.net
        self._greedy = greedy
        self._generator = generator
        self._recurrent = getattr(agent.net, "core", None) is not None
        self._memory: Any = None

    @torch.inference_mode()
    def __call__(self, timestep: TimeStep) -> Tensor:
        """Actions [B]. Recurrent networks remember from one call to the next."""
        if self._recurrent:
            if self._memory is None:
                self._memory = self._net.zero_state(len(timestep.reward))
            starts = timestep.discount == 0
            logits, self._memory = self._net.act(timestep.observation, starts, self._memory)
        else:
            logits = self._net.policy(timestep.observation)
        if self._greedy:
            return logits.argmax(-1)
        chances = logits.softmax(-1)
        return torch.multinomial(chances, 1, generator=self._generator).squeeze(1)
