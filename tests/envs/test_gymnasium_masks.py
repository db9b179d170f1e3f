"""Action masks of Gymnasium environments: three ways to give them, and what they are good for."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from discorl.agents.acting import act, begin
from discorl.agents.agent import agent_net
from discorl.envs.env_config import EnvConfig
from discorl.envs.gymnasium import as_env
from discorl.errors import DiscorlError, EnvFailure
from discorl.nets.linear import init_params
from discorl.rules import PolicyGradient
from discorl.runs.files import load_params
from discorl.training.config import CheckpointConfig, NetConfig, TrainConfig
from discorl.training.train import resume, train
from discorl.training.trained_agent import load_agent
from tests.builders import rng

NUM_ACTIONS = 5
WAYS = ["info", "method", "observation"]


class Masked(gymnasium.Env):
    """Allows two actions of five, others in each step, and fails if another one is taken."""

    action_space = spaces.Discrete(NUM_ACTIONS)

    def __init__(self, way: str = "info", limit: int = 4) -> None:
        self.way, self.limit, self.time = way, limit, 0
        self.observation_space = spaces.Box(0.0, 10.0, (2,))
        if way == "observation":
            mask = spaces.MultiBinary(NUM_ACTIONS)
            self.observation_space = spaces.Dict(
                {"seen": self.observation_space, "action_mask": mask}
            )
        if way == "method":
            self.action_masks = self.mask

    def mask(self) -> np.ndarray:
        first = self.time % NUM_ACTIONS
        return np.isin(np.arange(NUM_ACTIONS), [first, (first + 2) % NUM_ACTIONS])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.shown()

    def step(self, action: Any) -> Any:
        assert self.mask()[action], f"{action} is not allowed at {self.time}"
        reward = float(action == self.time % NUM_ACTIONS)
        self.time += 1
        shown, info = self.shown()
        return shown, reward, False, self.time >= self.limit, info

    def shown(self) -> Any:
        seen = np.array([self.time, 1.0], np.float32)
        if self.way == "observation":
            return {"seen": seen, "action_mask": self.mask().astype(np.int8)}, {}
        return seen, {"action_mask": self.mask()} if self.way == "info" else {}


def config(out: Path, **settings: Any) -> TrainConfig:
    sizes: dict[str, Any] = {"steps": 3, "num_envs": 2, "rollout_length": 6, "batch_size": 4}
    sizes |= {"replay_capacity": 8, "log_every": 1, "device": "cpu", "progress": "none"}
    net = NetConfig(torso=(8,), action_lstm=4, head_hidden=(4,))
    every = CheckpointConfig(every_steps=1, every_minutes=None, keep=9)
    return TrainConfig(
        task="masked", rule="cmpo", out=out, net=net, checkpoint=every, **sizes | settings
    )


@pytest.mark.parametrize("autoreset", ["same-step", "next-step"])
@pytest.mark.parametrize("way", WAYS)
def test_only_allowed_actions_are_taken(way: str, autoreset: Any) -> None:
    """By an agent that acts at random at first; the environment fails at the first mistake."""
    env = as_env(lambda: Masked(way), 3, "cpu", EnvConfig(autoreset=autoreset))
    assert env.spec.num_actions == NUM_ACTIONS
    assert env.spec.observations is None or set(env.spec.observations) == {"seen"}
    net = agent_net(env.spec, PolicyGradient(), NetConfig(torso=(8,)))
    rollout, _ = act(net, init_params(net, rng()), env, begin(net, env, rng()), 20)
    mask = rollout.action_mask
    assert mask is not None and mask.sum(-1).unique().tolist() == [2]
    allowed = mask.gather(-1, rollout.actions.unsqueeze(-1)).squeeze(-1)
    live = torch.ones_like(allowed) if rollout.is_dead is None else ~rollout.is_dead
    assert bool(allowed[live].all())
    assert bool((rollout.behaviour_logits.softmax(-1)[live.unsqueeze(-1) & ~mask] == 0).all())


@pytest.mark.parametrize("workers", ["sync", "async"])
@pytest.mark.parametrize("way", WAYS)
def test_training_evaluating_and_resuming_with_masks(
    way: str, workers: Any, tmp_path: Path
) -> None:
    out, make = tmp_path / "run", partial(Masked, way)
    settings = config(out, env=EnvConfig(workers=workers), eval_every=2, eval_episodes=2)
    train(settings, env=make)
    done = resume(replace(settings, steps=5), env=make)
    assert done.metrics[-1]["step"] == 5 and done.metrics[-1]["loss"] < 1e3
    assert "eval/greedy" in done.metrics[3]
    assert all(bool(p.isfinite().all()) for p in load_params(out / "agent.npz").values())


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("way", ["info", "observation"])
def test_an_agent_in_a_loop_of_ones_own(way: str, greedy: bool, tmp_path: Path) -> None:
    train(config(tmp_path / "run"), env=partial(Masked, way))
    agent = load_agent(tmp_path / "run", env=partial(Masked, way))
    env = Masked(way, limit=20)
    shown, info = env.reset()
    for _ in range(20):  # which fails at the first action that is not allowed
        action, _ = agent.predict(shown, greedy=greedy, action_mask=info.get("action_mask"))
        shown, _, _, _, info = env.step(action)
    with pytest.raises(DiscorlError, match="an entry for each action"):
        agent.predict(shown, action_mask=[1, 0])


class InOrder(VectorEnv):
    """A vector environment that has the method itself."""

    def __init__(self, num_envs: int) -> None:
        self.envs = [Masked("none") for _ in range(num_envs)]
        self.num_envs = num_envs
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.ended = np.zeros(num_envs, bool)

    def action_masks(self) -> np.ndarray:
        return np.stack([env.mask() for env in self.envs])

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.stack([env.reset()[0] for env in self.envs]), {}

    def step(self, actions: Any) -> Any:
        done = [
            (env.reset()[0], 0.0, False, False, {}) if is_over else env.step(action)
            for env, action, is_over in zip(self.envs, actions, self.ended, strict=True)
        ]
        shown, rewards, terminated, self.ended, _ = (np.array(x) for x in zip(*done, strict=True))
        return shown, rewards, terminated, self.ended, {}


def copies(kind: Any, autoreset: Any) -> VectorEnv:
    return kind([partial(Masked, "method")] * 3, autoreset_mode=autoreset)


@pytest.mark.parametrize(
    "make",
    [
        partial(copies, SyncVectorEnv, AutoresetMode.SAME_STEP),
        partial(copies, SyncVectorEnv, AutoresetMode.NEXT_STEP),
        partial(copies, SyncVectorEnv, AutoresetMode.DISABLED),
        partial(copies, AsyncVectorEnv, AutoresetMode.SAME_STEP),
        lambda: RecordEpisodeStatistics(copies(SyncVectorEnv, AutoresetMode.SAME_STEP)),
        lambda: InOrder(3),
    ],
    ids=["same-step", "next-step", "disabled", "async", "wrapped", "its own"],
)
def test_the_method_of_ready_vector_environments(make: Any) -> None:
    ready = make()
    env = as_env(ready, 3)
    net = agent_net(env.spec, PolicyGradient(), NetConfig(torso=(8,)))
    rollout, _ = act(net, init_params(net, rng()), env, begin(net, env, rng()), 20)
    assert rollout.action_mask is not None
    assert rollout.action_mask.sum(-1).unique().tolist() == [2]
    ready.close()


def test_ready_vector_environments_whose_method_is_wrong() -> None:
    class Few(InOrder):
        def action_masks(self) -> np.ndarray:
            return super().action_masks()[:1]

    class Failing(InOrder):
        def action_masks(self) -> np.ndarray:
            raise ZeroDivisionError("no masks today")

    with pytest.raises(EnvFailure, match="gave 1 action masks for 2 copies"):
        as_env(Few(2), 2).reset(rng())
    with pytest.raises(EnvFailure, match=r"failed to say its action_masks: .*no masks today"):
        as_env(Failing(2), 2).reset(rng())


def test_the_last_mask_of_an_episode_that_is_cut_off() -> None:
    env = as_env(lambda: Masked("info", limit=2), 1, "cpu")
    state, shown = env.reset(rng())
    for action in (0, 1):
        state, shown = env.step(state, torch.tensor([action]), rng())
    assert shown.final_action_mask is not None and shown.action_mask is not None
    assert shown.final_action_mask[0].nonzero().squeeze(1).tolist() == [2, 4], "at time 2"
    assert shown.action_mask[0].nonzero().squeeze(1).tolist() == [0, 2], "at time 0 of the next"


class Wrong(Masked):
    """Gives a mask that makes no sense."""

    def __init__(self, given: Any, only_in_step: bool = False) -> None:
        super().__init__("info")
        self.given, self.only_in_step = given, only_in_step

    def reset(self, **kwargs: Any) -> Any:
        shown, _ = super().reset(**kwargs)
        return shown, {} if self.only_in_step else {"action_mask": np.asarray(self.given)}

    def step(self, action: Any) -> Any:
        shown, reward, ended, cut, _ = super().step(0)
        return shown, reward, ended, cut, {"action_mask": np.asarray(self.given)}


@pytest.mark.parametrize(
    "given, words",
    [([1, 0, 1], r"shape \(3,\), but it has 5 actions"), ([0] * 5, "allows no action")],
)
def test_masks_that_make_no_sense(given: list[int], words: str) -> None:
    env = as_env(lambda: Wrong(given), 2, "cpu")
    with pytest.raises(EnvFailure, match=f"environment 0 of .*{words}"):
        env.reset(rng())


def test_masks_that_come_too_late() -> None:
    env = as_env(lambda: Wrong([1, 0, 1, 0, 0], only_in_step=True), 1, "cpu")
    state, _ = env.reset(rng())
    with pytest.raises(EnvFailure, match="in step, but not in reset: give it in both"):
        env.step(state, torch.tensor([0]), rng())


def test_observations_that_are_nothing_but_a_mask() -> None:
    class Blind(Masked):
        def __init__(self) -> None:
            super().__init__("observation")
            self.observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(NUM_ACTIONS)})

    with pytest.raises(DiscorlError, match="no observations besides its 'action_mask'"):
        as_env(Blind, 1, "cpu")
