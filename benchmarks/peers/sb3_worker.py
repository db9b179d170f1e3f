"""PPO of Stable-Baselines3 in the middle of a run, timed by turns with the others.

Another algorithm than everyone else's: it learns a little from each step, and we learn a lot. So
its speed says what a step costs a user of either, and not how well the same work is done.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import stable_baselines3
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CallbackList

from benchmarks.learning.tasks import BOARD_PPO, FIRST_OF
from benchmarks.peers.sb3_ppo import make_model
from benchmarks.worker import Job, T, serve

SETTINGS = {
    "catch": {"n_envs": 8, "n_steps": 256},
    "gym:CartPole-v1": FIRST_OF["cartpole"].ppo,
    "minatar:breakout": BOARD_PPO,
    "ale:Pong": FIRST_OF["pong"].ppo,
}
"""Of rl-baselines3-zoo, where it has the task or one like it; its defaults on Catch, with 2,048
steps for each round of updates, as by default, but from eight environments."""


def model_for(task: str, changes: dict[str, int] | None = None) -> PPO:
    settings = {**SETTINGS[task], **(changes or {})}
    return make_model({"task": task, "seed": 0, "settings": settings})


def run(task: str) -> Job:
    """A round: act in all environments, then learn from that for some epochs."""
    model = model_for(task)
    units = model.n_steps * model.n_envs
    return Job(lambda: model.learn(units, reset_num_timesteps=False), {"units": units})


def act(task: str, num_envs: int) -> Job:
    """A rollout, without learning."""
    model = model_for(task, {"n_envs": num_envs, "n_steps": T})
    model.learn(num_envs * T)
    callback = CallbackList([])
    callback.init_callback(model)
    assert model.env is not None

    def rollout() -> None:
        model.collect_rollouts(model.env, callback, model.rollout_buffer, T)

    return Job(rollout)


if __name__ == "__main__":
    torch.set_num_threads(1)  # as in the comparison of learning
    serve(
        {"run": run, "act": act},
        {"stable-baselines3": stable_baselines3.__version__, "torch": torch.__version__},
    )
