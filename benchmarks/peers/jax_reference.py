"""The JAX reference as a worker.

Runs in a virtual environment of its own. The training loop exists only in the reference's
notebooks; this one does the same work, but keeps in its replay only what the learner reads, and
samples it in NumPy, which is kinder to the reference than its own.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import collections
import os

import jax
import jax.numpy as jnp
import numpy as np
import rlax
from dm_env import specs
from ml_collections import config_dict

from benchmarks.peers.jax_discovery import IN_TURN, discover_catch, meta_step
from benchmarks.peers.jax_modules import agent_lib, jittable_envs, types, utils
from benchmarks.peers.jax_pixels import see_pixels
from benchmarks.worker import (
    CAPACITY,
    COLUMNS,
    ENV_BATCH,
    ENV_STEPS,
    LEARNING_RATE,
    NUM_ENVS,
    PIXELS,
    ROWS,
    B,
    Job,
    T,
    serve,
)

OBSERVATION_SHAPE = (ROWS, COLUMNS, 1)


def rule_params():
    params: dict = {}
    with np.load(os.environ["DISCORL_DISCO103"], allow_pickle=False) as archive:
        for key in archive.files:
            module, leaf = key.rsplit("/", 1)
            params.setdefault(module, {})[leaf] = jnp.asarray(archive[key])
    return params


def make_agent(num_actions: int, learning_rate: float = LEARNING_RATE, observation=None):
    settings = agent_lib.get_settings_disco()
    settings.learning_rate = learning_rate
    observation = observation or specs.Array(OBSERVATION_SHAPE, np.float32)
    return agent_lib.Agent(
        single_observation_spec={"observation": observation},
        single_action_spec=specs.BoundedArray((), np.int32, 0, num_actions - 1),
        agent_settings=settings,
        batch_axis_name=None,
    )


def make_env(num_envs: int):
    settings = config_dict.ConfigDict({"rows": ROWS, "columns": COLUMNS})
    return jittable_envs.CatchJittableEnvironment(batch_size=num_envs, env_settings=settings)


class Learner:
    """Jitted learner with its state."""

    def __init__(self, num_actions: int, seed: int = 0, agent=None) -> None:
        self.agent = agent or make_agent(num_actions)
        self._key = jax.random.PRNGKey(seed)
        self.state = self.agent.initial_learner_state(self._key)
        self.actor_state = self.agent.initial_actor_state(self._key)
        self.rule_params = rule_params()
        self._step = jax.jit(self.agent.learner_step, static_argnums=(5,))

    def step(self, rollout) -> None:
        self.state, _, log = self._step(
            self._key, rollout, self.state, self.actor_state, self.rule_params, False
        )
        jax.block_until_ready((self.state, log["total_loss"]))


class Actor:
    """Jitted rollouts in environments that go on."""

    def __init__(self, learner: Learner, seed: int = 1, num_envs: int = NUM_ENVS) -> None:
        self._learner = learner
        env, agent = make_env(num_envs), learner.agent
        self._key = jax.random.PRNGKey(seed)
        self._carry = (*env.reset(self._key), learner.actor_state)

        def act(params, carry, key):
            def one(carry, step_key):
                env_state, timestep, actor_state = carry
                out, actor_state = agent.actor_step(params, step_key, timestep, actor_state)
                env_state, timestep = env.step(env_state, out.actions)
                return (env_state, timestep, actor_state), out

            return jax.lax.scan(one, carry, jax.random.split(key, T))

        self._act = jax.jit(act)

    def rollout(self):
        self._key, key = jax.random.split(self._key)
        self._carry, rollout = self._act(self._learner.state.params, self._carry, key)
        return rollout


def rollout_of(observations, actions, rewards, discounts, logits):
    return types.ActorRollout(
        observations=observations,
        actions=actions,
        rewards=rewards,
        discounts=discounts,
        agent_outs={"logits": logits},  # all that the rule reads of the behaviour
        states={},
        logits=logits,
    )


def learn(num_actions: int = 3) -> Job:
    """One update on a rollout that stays the same."""
    learner = Learner(num_actions)
    observations = np.random.default_rng(1).normal(size=(T, B, *OBSERVATION_SHAPE))
    rollout = random_rollout(observations.astype(np.float32), num_actions)
    return Job(lambda: learner.step(rollout))


def learn_pixels(is_impala: int = 0) -> Job:
    """The same for images, by a network of our own around which the reference's rule works."""
    channels, *size = PIXELS.shape
    shape = (*size, channels)
    agent = make_agent(PIXELS.actions, PIXELS.learning_rate, specs.Array(shape, np.uint8))
    learner = Learner(PIXELS.actions, agent=see_pixels(agent, bool(is_impala)))
    images = np.random.default_rng(1).integers(256, size=(T, PIXELS.batch, *shape), dtype=np.uint8)
    rollout = random_rollout(images, PIXELS.actions)
    return Job(lambda: learner.step(rollout))


def random_rollout(observations, num_actions: int):
    rng, steps = np.random.default_rng(0), observations.shape[:2]
    return rollout_of(
        {"observation": observations},
        rng.integers(num_actions, size=steps).astype(np.int32),
        rng.normal(size=steps).astype(np.float32),
        (rng.random(steps) > 0.1).astype(np.float32),
        rng.normal(size=(*steps, num_actions)).astype(np.float32),
    )


class Training:
    """Act, remember, sample, learn, as the reference's notebook does."""

    def __init__(self, seed: int = 0) -> None:
        self._learner = Learner(3, seed)
        self._actor = Actor(self._learner, seed + 1)
        self._draws = np.random.default_rng(seed)
        self.replay: collections.deque = collections.deque(maxlen=CAPACITY)

    def step(self):
        """One training step; returns the new rollout."""
        new = self._actor.rollout()
        kept = jax.device_get(
            (new.observations, new.actions, new.rewards, new.discounts, new.logits)
        )
        for i in range(NUM_ENVS):
            self.replay.append(jax.tree.map(lambda x, i=i: x[:, i], kept))
        if len(self.replay) >= B:
            chosen = [self.replay[i] for i in self._draws.integers(len(self.replay), size=B)]
            batch = jax.tree.map(lambda *xs: np.stack(xs, 1), *chosen)
            self._learner.step(rollout_of(*batch))
        return new


def train() -> Job:
    """The whole training step."""
    training = Training()
    while len(training.replay) < B:
        training.step()

    def step() -> None:
        training.step()

    return Job(step)


def act(task: str, num_envs: int) -> Job:
    """A rollout, without learning."""
    if task != "catch":
        raise ValueError("the reference has only Catch")
    actor = Actor(Learner(3), num_envs=num_envs)
    return Job(lambda: jax.block_until_ready(actor.rollout()))


def env_steps() -> Job:
    """Many environments at once under random actions; the sums keep the compiler honest."""
    env = make_env(ENV_BATCH)

    @jax.jit
    def unroll(state, actions):
        def one(state, action):
            state, timestep = env.step(state, action)
            return state, (timestep.observation.sum(), timestep.reward.sum())

        return jax.lax.scan(one, state, actions)

    state, _ = env.reset(jax.random.PRNGKey(0))
    actions = jax.random.randint(jax.random.PRNGKey(1), (ENV_STEPS, ENV_BATCH), 0, 3)
    return Job(lambda: jax.block_until_ready(unroll(state, actions)))


def replay_sample() -> Job:
    """A batch from a replay as the reference's notebook keeps it: of whole rollouts."""
    rollout = jax.device_get(Actor(Learner(3)).rollout())
    np_rng = np.random.default_rng(0)
    buffer: list = []
    while len(buffer) < CAPACITY:
        buffer += rlax.tree_split_leaves(jax.tree.map(np.copy, rollout), axis=1)
    stored = sum(x.nbytes for x in jax.tree.leaves(buffer))

    def sample() -> None:
        chosen = [buffer[i] for i in np_rng.integers(len(buffer), size=B)]
        jax.block_until_ready(utils.tree_stack(chosen, axis=1))

    return Job(sample, {"bytes_per_transition": stored / (CAPACITY * T)})


if __name__ == "__main__":
    # None of these has agents to choose for.
    rest = (train, learn, learn_pixels, act, meta_step, env_steps, replay_sample)
    serve(
        {w.__name__: w for w in (discover_catch, *(() if IN_TURN else rest))},
        {"jax": jax.__version__, "threads": len(os.sched_getaffinity(0))},
    )
