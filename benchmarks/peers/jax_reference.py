"""The JAX reference, from the source tree that DISCO_RL_PATH names.

Runs in a virtual environment of its own. The training loop exists only in the reference's
notebooks; this one does the same work, but keeps in its replay only what the learner reads, and
samples it in NumPy, which is kinder to the reference than its own.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import collections
import os
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.worker import (
    CAPACITY,
    COLUMNS,
    ENV_BATCH,
    ENV_STEPS,
    LEARNING_RATE,
    META_AGENTS,
    META_BOARD,
    META_ENVS,
    META_HIDDEN,
    META_LEARNING_RATE,
    META_STEPS,
    META_TORSO,
    META_UPDATES,
    META_VALUE_TORSO,
    NUM_ENVS,
    ROWS,
    B,
    Job,
    T,
    serve,
)

chex.Array = jax.Array  # the reference tests isinstance(x, chex.Array), which newer chex refuses
sys.path.insert(0, os.environ["DISCO_RL_PATH"])

import distrax  # noqa: E402
import optax  # noqa: E402
import rlax  # noqa: E402
from disco_rl import agent as agent_lib  # noqa: E402
from disco_rl import types, utils  # noqa: E402
from disco_rl.environments import jittable_envs  # noqa: E402
from disco_rl.value_fns import value_fn  # noqa: E402
from dm_env import specs  # noqa: E402
from ml_collections import config_dict  # noqa: E402

OBSERVATION_SHAPE = (ROWS, COLUMNS, 1)


def rule_params():
    params: dict = {}
    with np.load(os.environ["DISCORL_DISCO103"], allow_pickle=False) as archive:
        for key in archive.files:
            module, leaf = key.rsplit("/", 1)
            params.setdefault(module, {})[leaf] = jnp.asarray(archive[key])
    return params


def make_agent(num_actions: int):
    settings = agent_lib.get_settings_disco()
    settings.learning_rate = LEARNING_RATE
    return agent_lib.Agent(
        single_observation_spec={"observation": specs.Array(OBSERVATION_SHAPE, np.float32)},
        single_action_spec=specs.BoundedArray((), np.int32, 0, num_actions - 1),
        agent_settings=settings,
        batch_axis_name=None,
    )


def make_env(num_envs: int):
    settings = config_dict.ConfigDict({"rows": ROWS, "columns": COLUMNS})
    return jittable_envs.CatchJittableEnvironment(batch_size=num_envs, env_settings=settings)


class Learner:
    """Jitted learner with its state."""

    def __init__(self, num_actions: int, seed: int = 0) -> None:
        self.agent = make_agent(num_actions)
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

    def __init__(self, learner: Learner, seed: int = 1) -> None:
        self._learner = learner
        env, agent = make_env(NUM_ENVS), learner.agent
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
    rng = np.random.default_rng(0)
    rollout = rollout_of(
        {"observation": rng.normal(size=(T, B, *OBSERVATION_SHAPE)).astype(np.float32)},
        rng.integers(num_actions, size=(T, B)).astype(np.int32),
        rng.normal(size=(T, B)).astype(np.float32),
        (rng.random((T, B)) > 0.1).astype(np.float32),
        rng.normal(size=(T, B, num_actions)).astype(np.float32),
    )
    return Job(lambda: learner.step(rollout))


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


class MetaAgent:
    """One agent of a discovery: how it acts, and what its learning says of the rule."""

    def __init__(self) -> None:
        board = config_dict.ConfigDict({"rows": META_BOARD, "columns": META_BOARD})
        self.env = jittable_envs.CatchJittableEnvironment(META_ENVS, board)
        settings = agent_lib.get_settings_disco()
        settings.learning_rate = META_LEARNING_RATE
        settings.net_settings.net_args = {
            "dense": META_TORSO,
            "model_arch_name": "lstm",
            "head_w_init_std": 1e-2,
            "model_kwargs": {"head_mlp_hiddens": (META_HIDDEN,), "lstm_size": META_HIDDEN},
        }
        self.agent = agent_lib.Agent(
            single_observation_spec=self.env.single_observation_spec(),
            single_action_spec=self.env.single_action_spec(),
            agent_settings=settings,
            batch_axis_name=None,
        )
        config = types.ValueFnConfig(
            net="mlp",
            net_args={"dense": META_VALUE_TORSO, "head_w_init_std": 1e-2, "action_spec": ()},
            learning_rate=1e-3,
            max_abs_update=1.0,
            discount_factor=0.99,
            td_lambda=0.96,
            outer_value_cost=1.0,
        )
        self.judge = value_fn.ValueFunction(config, axis_name=None)

    def start(self, key):
        keys = jax.random.split(key, 4)
        shape = (META_ENVS,)
        unseen = utils.zeros_like_spec(self.env.single_observation_spec(), prepend_shape=shape)
        return {
            "learner": self.agent.initial_learner_state(keys[0]),
            "value": self.judge.initial_state(keys[1], unseen),
            "world": (*self.env.reset(keys[2]), self.agent.initial_actor_state(keys[3])),
        }

    def act(self, state, key, num_steps: int):
        params = state["learner"].params

        def one(world, step_key):
            env_state, timestep, actor_state = world
            out, actor_state = self.agent.actor_step(params, step_key, timestep, actor_state)
            env_state, timestep = self.env.step(env_state, out.actions)
            return (env_state, timestep, actor_state), out

        world, steps = jax.lax.scan(one, state["world"], jax.random.split(key, num_steps))
        return state | {"world": world}, types.ActorRollout.from_timestep(steps)

    def gradient(self, rule_params, state, training, validation, key):
        """The gradient of the public notebook's loss, and the agent after its updates."""
        actor_state = state["world"][2]

        def loss(rule):
            def update(carry, rollout):
                learner, value = carry
                seen, _ = self.agent.unroll_net(learner.params, actor_state, rollout)
                after, _, log = self.agent.learner_step(
                    key, rollout, learner, actor_state, rule, True
                )
                value, _, _ = self.judge.update(value, rollout, seen["logits"])
                return (after, value), log["meta_out"]

            start = (state["learner"], state["value"])
            (learner, value), outs = jax.lax.scan(update, start, training)
            seen, _ = self.agent.unroll_net(learner.params, actor_state, validation)
            judged, _, _, _ = self.judge.get_value_outs(value, validation, seen["logits"])
            logits, actions = seen["logits"][:-1], validation.actions[:-1]
            total = utils.differentiable_policy_gradient_loss(
                logits, actions, adv_t=jax.lax.stop_gradient(judged.normalized_adv), backprop=False
            ).mean()
            entropy = lambda x: distrax.Softmax(x).entropy().mean()  # noqa: E731
            z_of_taken = utils.batch_lookup(seen["z"][:-1], actions)
            total -= 1e-2 * entropy(logits) + 1e-3 * (entropy(seen["y"]) + entropy(z_of_taken))
            for name in ("y", "z", "pi"):
                total += 1e-3 * jnp.mean(jnp.square(jnp.mean(outs[name], axis=(1, 2, 3))))
            before = jax.lax.stop_gradient(outs["target_out"]["logits"][:, :-1])
            total += 1e-2 * rlax.categorical_kl_divergence(before, outs["pi"]).mean()
            return total, {"learner": learner, "value": value}

        gradient, after = jax.grad(loss, has_aux=True)(rule_params)
        return gradient, state | after


def meta_step() -> Job:
    """All agents act and learn, and the rule follows the gradient through what they learnt."""
    agents = [MetaAgent() for _ in range(META_AGENTS)]
    key = jax.random.PRNGKey(0)
    optimiser = optax.adam(META_LEARNING_RATE)
    rule, _ = agents[0].agent.update_rule.init_params(key)
    carry = (rule, optimiser.init(rule), [a.start(k) for a, k in with_keys(agents, key)])

    @jax.jit
    def step(carry, key):
        rule, opt_state, states = carry
        gradients, after = [], []
        for (agent, own_key), state in zip(with_keys(agents, key), states, strict=True):
            keys = jax.random.split(own_key, META_UPDATES + 1)
            rollouts = []
            for act_key in keys[:-1]:
                state, rollout = agent.act(state, act_key, META_STEPS)
                rollouts.append(rollout)
            state, validation = agent.act(state, keys[-1], 2 * META_STEPS)
            training = utils.tree_stack(rollouts)
            gradient, state = agent.gradient(rule, state, training, validation, own_key)
            gradients.append(gradient)
            after.append(state)
        mean = jax.tree.map(lambda *g: sum(g) / len(g), *gradients)
        updates, opt_state = optimiser.update(mean, opt_state)
        return optax.apply_updates(rule, updates), opt_state, after

    def run() -> None:
        nonlocal carry, key
        key, own = jax.random.split(key)
        carry = jax.block_until_ready(step(carry, own))

    return Job(run)


def with_keys(agents, key):
    return list(zip(agents, jax.random.split(key, len(agents)), strict=True))


if __name__ == "__main__":
    serve(
        {w.__name__: w for w in (train, learn, meta_step, env_steps, replay_sample)},
        {"jax": jax.__version__, "threads": len(os.sched_getaffinity(0))},
    )
