"""discorl itself."""

from __future__ import annotations

import os
import sys

import torch

sys.path[:0] = [os.environ["DISCORL_BENCHMARKS"]]

from worker import Job, serve

from discorl.agents.agent import Agent, adam_clip, mlp_agent_net
from discorl.agents.replay import Replay
from discorl.agents.rollout import collect_rollout
from discorl.agents.update import update_agent
from discorl.envs.catch import Catch
from discorl.rules.store import load_rule
from discorl.types import EnvSpec, Rollout

T, B, NUM_ENVS, CAPACITY = 29, 64, 2, 1024


def make_agent(num_actions: int) -> tuple[Agent, dict, object]:
    loaded = load_rule("disco103")
    net = mlp_agent_net(EnvSpec((8, 8), num_actions), loaded.rule)
    agent = Agent(net, loaded.rule, adam_clip(1e-2))
    return agent, loaded.params, agent.init_state(torch.Generator().manual_seed(0))


def random_rollout(num_actions: int, batch: int = B, length: int = T) -> Rollout:
    g = torch.Generator().manual_seed(0)
    shape = (length, batch)
    return Rollout(
        observations=torch.randn(*shape, 8, 8, generator=g),
        actions=torch.randint(num_actions, shape, generator=g),
        rewards=torch.randn(shape, generator=g),
        discounts=(torch.rand(shape, generator=g) > 0.1).float(),
        behaviour_logits=torch.randn(*shape, num_actions, generator=g),
    )


def learn_job(num_actions: int):
    def prepare() -> Job:
        agent, rule_params, state = make_agent(num_actions)
        rollout = random_rollout(num_actions)
        loop = {"state": state}

        def step() -> None:
            loop["state"], _ = update_agent(agent, rule_params, loop["state"], rollout)

        return step

    return prepare


def train_job() -> Job:
    agent, rule_params, state = make_agent(3)
    rng = torch.Generator().manual_seed(0)
    env, replay = Catch(NUM_ENVS), Replay(CAPACITY)
    env_state, timestep = env.reset(rng)
    loop = {"state": state, "env_state": env_state, "timestep": timestep}

    def step() -> None:
        rollout, loop["env_state"], loop["timestep"] = collect_rollout(
            agent.net, loop["state"].params, env, loop["env_state"], loop["timestep"], T, rng
        )
        replay.add(rollout)
        if len(replay) >= B:
            batch = replay.sample(B, rng)
            loop["state"], _ = update_agent(agent, rule_params, loop["state"], batch)

    while len(replay) < B:
        step()
    return step


def env_job(num_envs: int = 1024, num_steps: int = 100) -> Job:
    rng = torch.Generator().manual_seed(0)
    env = Catch(num_envs)
    start, _ = env.reset(rng)
    actions = torch.randint(3, (num_steps, num_envs), generator=rng)

    def unroll() -> None:
        state = start
        for action in actions:
            state, _ = env.step(state, action, rng)

    return unroll


if __name__ == "__main__":
    serve(
        {
            "train_step": train_job,
            "learn_3": learn_job(3),
            "learn_18": learn_job(18),
            "env_steps": env_job,
        },
        {"implementation": "discorl", "torch": torch.__version__},
    )
