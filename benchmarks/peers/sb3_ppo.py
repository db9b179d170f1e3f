"""One run of Stable-Baselines3's PPO, in an interpreter of its own: JSON in, JSON out.

    python -m benchmarks.peers.sb3_ppo '{"task": ..., "env_steps": ..., "seed": 0, ...}'

The environments are discorl's own wrappers, and the curve is measured as ``discorl train`` does:
the mean return of the episodes that ended within the last ``window`` environment steps.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor, VecNormalize
from torch import Tensor, nn

from discorl.envs.registry import make_env
from discorl.envs.suites import find, minigrid
from discorl.envs.suites.minatar import MinAtarEnv
from discorl.envs.suites.suite_settings import MinAtarSettings, MiniGridSettings


class SmallConv(BaseFeaturesExtractor):
    """The network that discorl's agents have on small boards: 3x3 convolutions, a dense layer."""

    def __init__(self, observation_space: gymnasium.spaces.Box, features_dim: int = 128) -> None:
        super().__init__(observation_space, features_dim)
        height, width, channels = observation_space.shape
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * height * width, features_dim),
            nn.ReLU(),
        )

    def forward(self, observations: Tensor) -> Tensor:
        # Not "images" to Stable-Baselines3, which knows only large ones: divided here.
        return self.layers(observations.permute(0, 3, 1, 2) / 255)


class BatchedVecEnv(VecEnv):
    """What copies that are one object already have in common: no copy can be asked for anything."""

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> Any:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


class TensorVecEnv(BatchedVecEnv):
    """A task of ours whose copies are tensors."""

    def __init__(self, task: str, num_envs: int, seed: int) -> None:
        self._env = make_env(task, num_envs)
        self._rng = torch.Generator().manual_seed(seed)
        self._state: Any = None
        self._actions = torch.zeros(num_envs, dtype=torch.long)
        spec = self._env.spec
        shown = gymnasium.spaces.Box(-np.inf, np.inf, spec.observation_shape, np.float32)
        super().__init__(num_envs, shown, gymnasium.spaces.Discrete(spec.num_actions))

    def reset(self) -> np.ndarray:
        self._state, step = self._env.reset(self._rng)
        return step.observation.numpy()

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = torch.from_numpy(actions).long()

    def step_wait(self) -> Any:
        self._state, step = self._env.step(self._state, self._actions, self._rng)
        done = step.ended.numpy()
        infos: list[dict[str, Any]] = [{} for _ in done]
        if step.truncated is not None:  # PPO reads the final observation only there
            assert step.final_observation is not None
            for i in step.truncated.nonzero().flatten().tolist():
                infos[i]["terminal_observation"] = step.final_observation[i].numpy()
                infos[i]["TimeLimit.truncated"] = True
        return step.observation.numpy(), step.reward.numpy(), done, infos


class SuiteVecEnv(BatchedVecEnv):
    """A vector environment of Gymnasium's that resets at once, as our Atari suite makes it."""

    def __init__(self, task: str, num_envs: int, seed: int, options: dict[str, object]) -> None:
        suite = find(task)
        assert suite is not None
        self._envs, self._first_seed = suite.make(task, num_envs, options), seed
        self._actions = np.zeros(num_envs, dtype=np.int64)
        super().__init__(
            num_envs, self._envs.single_observation_space, self._envs.single_action_space
        )

    def reset(self) -> np.ndarray:
        return self._envs.reset(seed=self._first_seed)[0]

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> Any:
        seen, rewards, terminated, truncated, about = self._envs.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in rewards]
        done = terminated | truncated
        for i in done.nonzero()[0]:
            infos[i]["terminal_observation"] = about["final_obs"][i]
            infos[i]["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
        return seen, rewards, done, infos


class CurveCallback(BaseCallback):
    """Notes [environment steps, mean return of recent episodes] at even distances."""

    def __init__(self, every: int, window: int, max_seconds: float) -> None:
        super().__init__()
        self._end = time.monotonic() + max_seconds
        self.curve: list[list[float]] = []
        self.num_episodes = 0
        self._every, self._window = every, window
        self._recent: deque[tuple[int, float]] = deque()
        self._next = every

    def _on_step(self) -> bool:
        now = self.num_timesteps
        for info in self.locals["infos"]:
            if "episode" in info:
                self._recent.append((now, float(info["episode"]["r"])))
                self.num_episodes += 1
        while self._recent and self._recent[0][0] <= now - self._window:
            self._recent.popleft()
        if now >= self._next:
            self._next += self._every
            if self._recent:
                mean = sum(r for _, r in self._recent) / len(self._recent)
                self.curve.append([now, round(mean, 4)])
        return time.monotonic() < self._end


def make_one(task: str, options: dict[str, Any]) -> gymnasium.Env:
    """The environment behind one of discorl's names, as discorl wraps it."""
    suite, _, name = task.partition(":")
    if suite == "gym":
        env = gymnasium.make(name, **options)
        joined = isinstance(env.observation_space, gymnasium.spaces.Tuple)
        return gymnasium.wrappers.FlattenObservation(env) if joined else env
    if suite == "minatar":
        return MinAtarEnv(name, MinAtarSettings())
    if suite == "minigrid":
        return minigrid.factory(name, MiniGridSettings())()
    raise ValueError(f"no PPO on {task}")


def make_envs(task: str, num_envs: int, seed: int, options: dict[str, Any]) -> VecEnv:
    """Copies that report their episodes."""
    if find(task) is None and not task.startswith("gym:"):
        return VecMonitor(TensorVecEnv(task, num_envs, seed))
    if task.startswith("ale:"):
        return VecMonitor(SuiteVecEnv(task, num_envs, seed, options))
    return VecMonitor(DummyVecEnv([lambda: make_one(task, options)] * num_envs))


def linear(start: float) -> Callable[[float], float]:
    """From ``start`` to 0 over the run."""
    return lambda remaining: remaining * start


def make_model(job: dict[str, Any]) -> PPO:
    """PPO with these settings, in its environments."""
    settings = dict(job["settings"])
    num_envs, options = settings.pop("n_envs"), settings.pop("env_options", {})
    envs = make_envs(job["task"], num_envs, job["seed"], options)
    if settings.pop("normalize", False):
        envs = VecNormalize(envs, gamma=settings.get("gamma", 0.99))
    elif settings.pop("normalize_reward", False):
        # Of zoo's "normalize" only the rewards: the observations are one-hot already.
        envs = VecNormalize(envs, norm_obs=False, gamma=settings.get("gamma", 0.99))
    for name in ("learning_rate", "clip_range"):
        if isinstance(settings.get(name), str):
            settings[name] = linear(float(settings[name].removeprefix("lin_")))
    policy, kind = settings.pop("policy", "MlpPolicy"), PPO
    if settings.pop("lstm", 0):
        policy, kind = "MlpLstmPolicy", RecurrentPPO
    if settings.pop("conv", False):
        settings["policy_kwargs"] = {"features_extractor_class": SmallConv, "net_arch": []}
    return kind(policy, envs, seed=job["seed"], device="cpu", **settings)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train, and return the curve."""
    start = time.monotonic()
    model = make_model(job)
    curve = CurveCallback(job["every"], job["window"], job.get("max_seconds", float("inf")))
    model.learn(job["env_steps"], callback=curve)
    return {
        "seconds": round(time.monotonic() - start, 1),
        "episodes": curve.num_episodes,
        "curve": curve.curve,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(run(json.loads(sys.argv[1]))))
