"""Small trained agents on real environments, and what an evaluation shows and does there."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorWrapper

from discorl.envs.env_config import EnvConfig
from discorl.envs.gymnasium.env import GymnasiumEnv
from discorl.envs.suites.copies import StackFrames
from discorl.nets.net_config import NetConfig
from discorl.runs.files import load_params, save_params
from discorl.training.config import TrainConfig
from discorl.training.train import train
from discorl.training.trained_agent import LoadedAgent, load_agent

SMALL = TrainConfig(
    rule="policy-gradient",
    steps=2,
    rollout_length=6,
    batch_size=2,
    replay_capacity=8,
    progress="none",
    device="cpu",
    net=NetConfig(torso=(16,), channels=(4,), dense=16),
)
RECURRENT = replace(SMALL.net, core_lstm=8)

KINDS: dict[str, dict[str, Any]] = {
    "cartpole": {"task": "gym:CartPole-v1"},
    "recurrent": {"task": "gym:CartPole-v1", "net": RECURRENT},
    "next-step": {
        "task": "gym:CartPole-v1",
        "net": RECURRENT,
        "env": EnvConfig(autoreset="next-step"),
    },
    "bins": {
        "task": "gym:Pendulum-v1",
        "env": EnvConfig(action_bins=4, normalize_observations=True),
    },
    "one-hot": {"task": "gym:FrozenLake-v1"},
    "tuple": {"task": "gym:Blackjack-v1"},
    "minatar": {"task": "minatar:breakout"},
    "minigrid": {"task": "minigrid:Empty-5x5", "net": RECURRENT},
    "atari": {"task": "ale:Pong", "frame_stack": 4},
    "sokoban": {"task": "sokoban", "frame_stack": 3, "net": RECURRENT},
    "tensors": {"task": "catch:5x4", "net": RECURRENT},
}


def trained(folder: Path, source: Any = None, **settings: Any) -> LoadedAgent:
    """An agent that has learnt little, with louder opinions: its actions differ."""
    config = replace(SMALL, **settings, out=folder)
    train(config, env=source)
    file = folder / "agent.npz"
    generator = torch.Generator().manual_seed(5)
    params = load_params(file)
    for name, p in params.items():
        if p.dim() > 1:
            spread = 2 / p[0].numel() ** 0.5
            params[name] = p + spread * torch.randn(p.shape, generator=generator)
    save_params(file, params)
    return load_agent(folder, env=source)


class Shown(VectorWrapper):
    """Keeps what the vector environment inside shows and is told."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observations: list[Any] = []
        self.actions: list[Any] = []
        self.starts: list[np.ndarray] = []

    def reset(self, **kwargs: Any) -> Any:
        observation, info = self.env.reset(**kwargs)
        self._keep(observation, np.ones(self.num_envs, bool))
        return observation, info

    def step(self, actions: Any) -> Any:
        self.actions.append(deepcopy(actions))
        observation, reward, terminated, truncated, info = self.env.step(actions)
        ended = terminated | truncated
        self._keep(observation, ended)
        return observation, reward, terminated, truncated, info

    def _keep(self, observation: Any, starts: np.ndarray) -> None:
        self.observations.append(deepcopy(observation))
        self.starts.append(starts.copy())


def evaluation(agent: LoadedAgent, num_envs: int, steps: int, greedy: bool = True) -> Shown:
    """What an evaluation's environments show before frames are stacked, and the actions taken."""
    env: Any = agent.make_env(num_envs)
    assert isinstance(env, GymnasiumEnv)
    inner: Any = env._envs
    if isinstance(inner, StackFrames):
        inner.env = shown = Shown(inner.env)
    else:
        env._envs = shown = Shown(inner)
    at = agent.begin(env, seed=0)
    for _ in range(steps):
        _, at = agent.step(env, at, greedy)
    env.close()
    return shown
