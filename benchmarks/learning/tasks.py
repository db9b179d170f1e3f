"""The tasks, what each costs, and the settings of each algorithm on it.

What stands here was chosen with seed 100, which is not among those reported: see README.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RULES = ("disco103", "actor-critic")
PPO = "ppo"
ALGORITHMS = (*RULES, PPO)

ROLLOUT = 29
EVERY, WINDOW = 10, 50
"""Training steps between two points of a curve, and those whose episodes a point is the mean of."""


@dataclass(frozen=True)
class LearningTask:
    """One comparison. Options are those of ``discorl train``; all others are its preset's."""

    name: str
    title: str
    task: str
    """As ``discorl train`` calls it."""
    steps: int
    """Training steps of ours."""
    num_envs: int = 16
    shared: str = ""
    """Options of both rules: the network, the environment."""
    disco103: str = ""
    actor_critic: str = ""
    ppo: Mapping[str, Any] | None = None
    """Arguments of Stable-Baselines3's PPO; None to leave it out."""
    ppo_from: str = ""
    """Where these settings come from."""
    on_request: bool = False
    """Only run if named: takes hours."""
    evaluate: int = 0
    """Episodes of the trained agent that are played afterwards, for our rules."""

    @property
    def per_step(self) -> int:
        """Environment steps of a training step of ours."""
        return self.num_envs * ROLLOUT

    @property
    def env_steps(self) -> int:
        return self.steps * self.per_step

    def options(self, rule: str) -> list[str]:
        """Options of ``discorl train`` for a rule."""
        own = {"disco103": self.disco103, "actor-critic": self.actor_critic}[rule]
        size = f"--num-envs {self.num_envs} --rollout-length {ROLLOUT}"
        zeros = "" if "zero-values" in own else "--net.zero-values"
        return f"{size} {zeros} {self.shared} {own}".split()


MANY_UPDATES = "--batch-size 16 --updates-per-step 4 --replay-share 1"
"""Of small batches: what counts for Disco103 is how often it updates."""
RANDOM_VALUES = "--net.no-zero-values"
"""Values begin at random, as the reference's do; without it they begin at 0."""
ON_POLICY = "--updates-per-step 1 --replay-share 0 --optimiser.learning-rate 1e-3"
HALF_REPLAY = (
    "--batch-size 16 --updates-per-step 4 --replay-share 0.5 --optimiser.learning-rate 1e-3"
)
"""What suited the actor-critic on some tasks, and on others."""
SCALAR = "--actor-critic.num-bins None"
"""A plain value. The reference's 601 bins up to 300 learn later where returns are small, and better
where they are large."""
BOARD_PPO = {
    "n_envs": 8,
    "n_steps": 128,
    "n_epochs": 4,
    "batch_size": 256,
    "learning_rate": "lin_2.5e-4",
    "clip_range": "lin_0.1",
    "vf_coef": 0.5,
    "ent_coef": 0.01,
    "conv": True,
}
MINIGRID_PPO = {
    "n_envs": 8,
    "n_steps": 128,
    "batch_size": 64,
    "gae_lambda": 0.95,
    "gamma": 0.99,
    "n_epochs": 10,
    "ent_coef": 0.0,
    "learning_rate": 2.5e-4,
    "clip_range": 0.2,
    "normalize_reward": True,
    "conv": True,
}
MEMORY_PPO = {"n_envs": 16, "n_steps": 128, "batch_size": 256}
PONG = (
    "--env.suite.no-full-actions --updates-per-step 1 --replay-share 0.5 "
    "--optimiser.learning-rate 1e-3 --optimiser.schedule constant --optimiser.warmup-steps 0"
)
"""Chosen without a search, which would take days here."""
MEMORY_NET = "--net.torso 64 --net.action-lstm 64 --net.head-hidden 64"

TASKS = {
    task.name: task
    for task in (
        LearningTask(
            "cartpole",
            "CartPole-v1",
            "gym:CartPole-v1",
            steps=647,
            shared="--optimiser.schedule cosine",  # so that what is solved stays solved
            disco103=f"{MANY_UPDATES} --optimiser.learning-rate 3e-3",
            ppo={
                "n_envs": 8,
                "n_steps": 32,
                "batch_size": 256,
                "gae_lambda": 0.8,
                "gamma": 0.98,
                "n_epochs": 20,
                "ent_coef": 0.0,
                "learning_rate": "lin_1e-3",
                "clip_range": "lin_0.2",
            },
            ppo_from="rl-baselines3-zoo, CartPole-v1",
            actor_critic=f"{ON_POLICY} --batch-size 16 --actor-critic.entropy-cost 0.01",
            evaluate=100,
        ),
        LearningTask(
            "lunarlander",
            "LunarLander-v3",
            "gym:LunarLander-v3",
            steps=540,
            disco103=f"{MANY_UPDATES} {RANDOM_VALUES} --optimiser.learning-rate 3e-3",
            actor_critic=f"{HALF_REPLAY} --actor-critic.entropy-cost 0.03",
            ppo={
                "n_envs": 16,
                "n_steps": 1024,
                "batch_size": 64,
                "gae_lambda": 0.98,
                "gamma": 0.999,
                "n_epochs": 4,
                "ent_coef": 0.01,
            },
            ppo_from="rl-baselines3-zoo, LunarLander-v2",
        ),
        LearningTask(
            "breakout",
            "MinAtar Breakout",
            "minatar:breakout",
            steps=650,
            num_envs=8,
            disco103=f"{MANY_UPDATES} --optimiser.learning-rate 5e-3",
            actor_critic=f"{HALF_REPLAY} {SCALAR} --actor-critic.entropy-cost 0.01",
            ppo=BOARD_PPO,
            ppo_from="rl-baselines3-zoo, Atari, with the network of ours",
        ),
        LearningTask(
            "space-invaders",
            "MinAtar Space Invaders",
            "minatar:space_invaders",
            steps=300,
            num_envs=8,
            disco103=f"{MANY_UPDATES} --optimiser.learning-rate 5e-3",
            actor_critic=f"{HALF_REPLAY} {SCALAR} --actor-critic.entropy-cost 0.01",
            ppo=BOARD_PPO,
            ppo_from="rl-baselines3-zoo, Atari, with the network of ours",
        ),
        LearningTask(
            "empty-random",
            "MiniGrid Empty-Random-6x6",
            "minigrid:Empty-Random-6x6",
            steps=259,
            num_envs=8,
            disco103=f"{MANY_UPDATES} --optimiser.learning-rate 5e-3",
            actor_critic=f"{HALF_REPLAY} {SCALAR} --actor-critic.entropy-cost 0.01",
            ppo=MINIGRID_PPO,
            ppo_from="rl-baselines3-zoo, MiniGrid-DoorKey-5x5-v0, with the network of ours",
        ),
        LearningTask(
            "doorkey",
            "MiniGrid DoorKey-5x5",
            "minigrid:DoorKey-5x5",
            steps=431,
            num_envs=8,
            disco103=f"{MANY_UPDATES} --optimiser.learning-rate 5e-3",
            actor_critic=f"{HALF_REPLAY} {SCALAR} --actor-critic.entropy-cost 0.01",
            ppo=MINIGRID_PPO,
            ppo_from="rl-baselines3-zoo, MiniGrid-DoorKey-5x5-v0, with the network of ours",
            on_request=True,
        ),
        LearningTask(
            "memory-lstm",
            "memory, with an LSTM core",
            "memory:8",
            steps=216,
            disco103=f"{MANY_UPDATES} --optimiser.learning-rate 5e-3",
            shared=f"{MEMORY_NET} --net.core-lstm 64",
            actor_critic=f"{ON_POLICY} {SCALAR} --batch-size 16 --actor-critic.entropy-cost 0.01",
            ppo=MEMORY_PPO | {"lstm": True},
            ppo_from="sb3-contrib's RecurrentPPO and its defaults, with more environments",
        ),
        LearningTask(
            "memory-no-lstm",
            "memory, without",
            "memory:8",
            steps=75,
            disco103=f"{MANY_UPDATES} --optimiser.learning-rate 5e-3",
            shared=MEMORY_NET,
            actor_critic=f"{ON_POLICY} {SCALAR} --batch-size 16 --actor-critic.entropy-cost 0.01",
            ppo=MEMORY_PPO,
            ppo_from="its defaults, with more environments",
        ),
        LearningTask(
            "pong",
            "Atari Pong",
            "ale:Pong",
            steps=520,
            num_envs=8,
            shared=PONG,
            actor_critic=f"{SCALAR} --actor-critic.entropy-cost 0.01",
            ppo={"suite_options": {"full_actions": False}}
            | {name: x for name, x in BOARD_PPO.items() if name != "conv"}
            | {"policy": "CnnPolicy"},
            ppo_from="rl-baselines3-zoo, Atari",
            on_request=True,
        ),
    )
}
