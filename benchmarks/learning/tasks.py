"""The tasks, what each costs, and the settings of each algorithm on it.

What stands here was chosen with seed 100, which is not among those reported: see README.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

RULES = ("disco103", "disco-mini", "cmpo", "actor-critic")
PPO = "ppo"
ALGORITHMS = (*RULES, PPO)

ROLLOUT = 29
EVERY, WINDOW = 10, 50
"""Training steps between two points of a curve, and those whose episodes a point is the mean of."""


@dataclass(frozen=True)
class LearningTask:
    """A task, its budget, and the settings of each algorithm on it."""

    name: str
    title: str
    task: str
    """As ``discorl train`` calls it."""
    suite: str
    """The table that it belongs to."""
    env_steps: int
    num_envs: int = 16
    """Copies of the environment that Disco103's preset has, for the points of PPO's curve."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of ``discorl train`` for each of our rules; all others are its preset's."""
    algorithms: tuple[str, ...] = ALGORITHMS
    ppo: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of Stable-Baselines3's PPO."""
    ppo_from: str = ""
    """Where these settings come from."""
    evaluate: int = 0
    """Episodes of the trained agent that are played afterwards, for our rules."""

    @property
    def per_step(self) -> int:
        """Environment steps of a training step of Disco103."""
        return self.num_envs * ROLLOUT


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


def _first(
    name: str,
    title: str,
    task: str,
    steps: int,
    num_envs: int = 16,
    shared: str = "",
    disco103: str = "",
    actor_critic: str = "",
    **rest: Any,
) -> LearningTask:
    """A task of the first comparison, whose settings were chosen task by task."""
    size = f"--num-envs {num_envs} --rollout-length {ROLLOUT}"

    def options(own: str) -> str:
        zeros = "" if "zero-values" in own else "--net.zero-values"
        return f"{size} {zeros} {shared} {own}"

    return LearningTask(
        *(name, title, task, "first", steps * num_envs * ROLLOUT, num_envs),
        options={"disco103": options(disco103), "actor-critic": options(actor_critic)},
        algorithms=("disco103", "actor-critic", PPO),
        **rest,
    )


FIRST = (
    _first(
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
    _first(
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
    _first(
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
    _first(
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
    _first(
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
    _first(
        "doorkey",
        "MiniGrid DoorKey-5x5",
        "minigrid:DoorKey-5x5",
        steps=431,
        num_envs=8,
        disco103=f"{MANY_UPDATES} --optimiser.learning-rate 5e-3",
        actor_critic=f"{HALF_REPLAY} {SCALAR} --actor-critic.entropy-cost 0.01",
        ppo=MINIGRID_PPO,
        ppo_from="rl-baselines3-zoo, MiniGrid-DoorKey-5x5-v0, with the network of ours",
    ),
    _first(
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
    _first(
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
    _first(
        "pong",
        "Atari Pong",
        "ale:Pong",
        steps=520,
        num_envs=8,
        shared=PONG,
        actor_critic=f"{SCALAR} --actor-critic.entropy-cost 0.01",
        ppo={"env_options": {"full_actions": False}}
        | {name: x for name, x in BOARD_PPO.items() if name != "conv"}
        | {"policy": "CnnPolicy"},
        ppo_from="rl-baselines3-zoo, Atari",
    ),
)

ZOO = "rl-baselines3-zoo"
DEFAULTS = "the defaults of Stable-Baselines3, with more environments"
SHARED_STEPS = {"normalize": True, "n_envs": 16, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0}
FIRST_OF = {task.name: task for task in FIRST}


SUITE_PREFIXES = ("ale", "gym", "minatar", "minigrid")


def _by_preset(
    suite: str, task: str, env_steps: int, ppo: Mapping[str, Any], ppo_from: str, **rest: Any
) -> LearningTask:
    """A task on which every rule of ours has the settings of its preset."""
    title = task.partition(":")[2] if task.partition(":")[0] in SUITE_PREFIXES else task
    name = f"{suite}-{title.lower().replace(':', '-')}"
    return LearningTask(name, title, task, suite, env_steps, ppo=ppo, ppo_from=ppo_from, **rest)


TIME_LIMITS = {"gym:CliffWalking-v1": 500}
"""Steps of an episode where Gymnasium has no limit: by chance it would hardly ever end."""


def _classic(name: str, env_steps: int, ppo: Mapping[str, Any], ppo_from: str) -> LearningTask:
    task, options = f"gym:{name}", {}
    if limit := TIME_LIMITS.get(task):
        limited = {"max_episode_steps": limit}
        ppo = {**ppo, "env_options": limited}
        options = dict.fromkeys(RULES, f"--env.kwargs {json.dumps(limited, separators=(',', ':'))}")
    return _by_preset("classic", task, env_steps, ppo, ppo_from, options=options)


CLASSIC = tuple(
    _classic(*settings)
    for settings in (
        ("CartPole-v1", 100_000, FIRST_OF["cartpole"].ppo, f"{ZOO}, CartPole-v1"),
        ("Acrobot-v1", 300_000, SHARED_STEPS | {"n_steps": 256, "gae_lambda": 0.94}, ZOO),
        ("MountainCar-v0", 300_000, SHARED_STEPS | {"n_steps": 16, "gae_lambda": 0.98}, ZOO),
        ("LunarLander-v3", 500_000, FIRST_OF["lunarlander"].ppo, f"{ZOO}, LunarLander-v2"),
        ("FrozenLake-v1", 200_000, {"n_envs": 16, "n_steps": 128}, DEFAULTS),
        ("CliffWalking-v1", 200_000, {"n_envs": 16, "n_steps": 128}, DEFAULTS),
    )
)
MINATAR = tuple(
    _by_preset(
        *("minatar", f"minatar:{game}", 300_000, BOARD_PPO),
        f"{ZOO}, Atari, with the network of ours",
        num_envs=8,
    )
    for game in ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
)
MINIGRID = (
    *(
        _by_preset(
            *("minigrid", f"minigrid:{name}", 150_000, MINIGRID_PPO),
            f"{ZOO}, MiniGrid-DoorKey-5x5-v0, with the network of ours",
            num_envs=8,
        )
        for name in ("Empty-Random-6x6", "DoorKey-5x5")
    ),
    _by_preset(
        *("minigrid", "memory:8", 100_000, MEMORY_PPO | {"lstm": True}),
        "sb3-contrib's RecurrentPPO and its defaults, with more environments",
        # The preset of tensor tasks is the reference's for Catch: two copies, no memory.
        options=dict.fromkeys(
            RULES, f"--num-envs 16 {MANY_UPDATES} {MEMORY_NET} --net.core-lstm 64"
        ),
    ),
)
CONTINUOUS = (
    _by_preset(
        *("continuous", "gym:Pendulum-v1", 100_000),
        {
            "n_envs": 4,
            "n_steps": 1024,
            "gae_lambda": 0.95,
            "gamma": 0.9,
            "n_epochs": 10,
            "ent_coef": 0.0,
            "learning_rate": 1e-3,
            "clip_range": 0.2,
            "use_sde": True,
            "sde_sample_freq": 4,
        },
        ZOO,
    ),
    _by_preset(
        *("continuous", "gym:LunarLanderContinuous-v3", 500_000, FIRST_OF["lunarlander"].ppo),
        f"{ZOO}, LunarLanderContinuous-v2",
    ),
)
ATARI = tuple(
    _by_preset(
        *("atari", f"ale:{game}", 10_000_000, FIRST_OF["pong"].ppo, f"{ZOO}, Atari"),
        num_envs=8,
        options={"disco103": "--env.suite.no-full-actions"},
        algorithms=("disco103", PPO),
    )
    for game in ("Pong", "Breakout")
)
SUITES = {
    "classic": CLASSIC,
    "minatar": MINATAR,
    "minigrid": MINIGRID,
    "continuous": CONTINUOUS,
    "atari": ATARI,
    "first": FIRST,
}
"""One table each."""
TASKS = {task.name: task for tasks in SUITES.values() for task in tasks}
