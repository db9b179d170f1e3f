"""The JAX reference, from the source tree that DISCO_RL_PATH names.

Runs in a virtual environment of its own. The training loop exists only in the reference's
notebooks; this one does the same work, but keeps in its replay only what the learner reads, which
is kinder to the reference than its own.
"""

from __future__ import annotations

import collections
import os
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np

chex.Array = jax.Array  # the reference tests isinstance(x, chex.Array), which newer chex refuses
sys.path[:0] = [os.environ["DISCO_RL_PATH"], os.environ["DISCORL_BENCHMARKS"]]

from disco_rl import agent as agent_lib  # noqa: E402
from disco_rl import types, utils  # noqa: E402
from disco_rl.environments import jittable_envs  # noqa: E402
from dm_env import specs  # noqa: E402
from ml_collections import config_dict  # noqa: E402
from worker import serve  # noqa: E402

T, B, NUM_ENVS, CAPACITY = 29, 64, 2, 1024


def rule_params():
    params: dict = {}
    with np.load(os.environ["DISCORL_DISCO103"], allow_pickle=False) as archive:
        for key in archive.files:
            module, leaf = key.rsplit("/", 1)
            params.setdefault(module, {})[leaf] = jnp.asarray(archive[key])
    return params


def make_agent(num_actions: int, observation_shape: tuple[int, ...]):
    settings = agent_lib.get_settings_disco()
    settings.learning_rate = 1e-2
    return agent_lib.Agent(
        single_observation_spec={"observation": specs.Array(observation_shape, np.float32)},
        single_action_spec=specs.BoundedArray((), np.int32, 0, num_actions - 1),
        agent_settings=settings,
        batch_axis_name=None,
    )


class Learner:
    """Jitted learner with its state."""

    def __init__(self, num_actions: int, observation_shape: tuple[int, ...]) -> None:
        self.agent = make_agent(num_actions, observation_shape)
        key = jax.random.PRNGKey(0)
        self.state = self.agent.initial_learner_state(key)
        self.actor_state = self.agent.initial_actor_state(key)
        self.rule_params = rule_params()
        self._step = jax.jit(self.agent.learner_step, static_argnums=(5,))
        self._key = key

    def step(self, rollout) -> None:
        self.state, _, log = self._step(
            self._key, rollout, self.state, self.actor_state, self.rule_params, False
        )
        jax.block_until_ready((self.state, log["total_loss"]))


def random_rollout(num_actions: int, observation_shape: tuple[int, ...]):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(T, B, num_actions)).astype(np.float32)
    return types.ActorRollout(
        observations={"observation": rng.normal(size=(T, B, *observation_shape)).astype(np.float32)},
        actions=rng.integers(num_actions, size=(T, B)).astype(np.int32),
        rewards=rng.normal(size=(T, B)).astype(np.float32),
        discounts=(rng.random((T, B)) > 0.1).astype(np.float32),
        agent_outs={"logits": logits},
        states={},
        logits=logits,
    )


def learn_job(num_actions: int):
    def prepare():
        shape = (8, 8, 1)
        learner, rollout = Learner(num_actions, shape), random_rollout(num_actions, shape)
        return lambda: learner.step(rollout)

    return prepare


def train_job():
    env = jittable_envs.CatchJittableEnvironment(
        batch_size=NUM_ENVS, env_settings=config_dict.ConfigDict({"rows": 8, "columns": 8})
    )
    learner = Learner(3, (8, 8, 1))
    agent = learner.agent

    def act(params, actor_state, timestep, env_state, key):
        def one(carry, step_key):
            env_state, timestep, actor_state = carry
            out, actor_state = agent.actor_step(params, step_key, timestep, actor_state)
            env_state, timestep = env.step(env_state, out.actions)
            return (env_state, timestep, actor_state), out

        return jax.lax.scan(one, (env_state, timestep, actor_state), jax.random.split(key, T))

    jitted_act = jax.jit(act)
    buffer: collections.deque = collections.deque(maxlen=CAPACITY)
    np_rng = np.random.default_rng(0)
    key = jax.random.PRNGKey(1)
    env_state, timestep = env.reset(key)
    loop = {"env_state": env_state, "timestep": timestep, "key": key}

    def step() -> None:
        loop["key"], act_key = jax.random.split(loop["key"])
        (loop["env_state"], loop["timestep"], _), rollout = jitted_act(
            learner.state.params, learner.actor_state, loop["timestep"], loop["env_state"], act_key
        )
        kept = jax.device_get(
            (
                rollout.observations,
                rollout.actions,
                rollout.rewards,
                rollout.discounts,
                rollout.logits,
            )
        )
        for i in range(NUM_ENVS):
            buffer.append(jax.tree.map(lambda x, i=i: x[:, i], kept))
        if len(buffer) < B:
            return
        chosen = [buffer[i] for i in np_rng.integers(len(buffer), size=B)]
        observations, actions, rewards, discounts, logits = jax.tree.map(
            lambda *xs: np.stack(xs, 1), *chosen
        )
        learner.step(
            types.ActorRollout(
                observations=observations,
                actions=actions,
                rewards=rewards,
                discounts=discounts,
                agent_outs={"logits": logits},
                states={},
                logits=logits,
            )
        )

    while len(buffer) < B:
        step()
    return step


def env_job(num_envs: int = 1024, num_steps: int = 100):
    env = jittable_envs.CatchJittableEnvironment(
        batch_size=num_envs, env_settings=config_dict.ConfigDict({"rows": 8, "columns": 8})
    )

    @jax.jit
    def unroll(state, actions):
        def one(state, action):
            state, timestep = env.step(state, action)
            return state, (timestep.observation.sum(), timestep.reward.sum())

        return jax.lax.scan(one, state, actions)

    state, _ = env.reset(jax.random.PRNGKey(0))
    actions = jax.random.randint(jax.random.PRNGKey(1), (num_steps, num_envs), 0, 3)
    return lambda: jax.block_until_ready(unroll(state, actions))


if __name__ == "__main__":
    del utils
    serve(
        {
            "train_step": train_job,
            "learn_3": learn_job(3),
            "learn_18": learn_job(18),
            "env_steps": env_job,
        },
        {"implementation": "disco_rl (JAX reference)", "jax": jax.__version__},
    )
