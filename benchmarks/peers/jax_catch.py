"""A learning curve of the JAX reference on Catch with Disco103: ``python -m ... SEED STEPS``.

Prints the catch rate over the last 50 steps, every 10 steps, as JSON lines.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import collections
import json
import sys

import jax
import numpy as np

from benchmarks.peers import jax_reference as reference
from benchmarks.worker import CAPACITY, NUM_ENVS, B, T

EVERY, WINDOW = 10, 50


def main(seed: int, num_steps: int) -> None:
    agent, env = reference.make_agent(3), reference.make_env(NUM_ENVS)
    key = jax.random.PRNGKey(seed)
    learner, actor_state = agent.initial_learner_state(key), agent.initial_actor_state(key)
    rule_params = reference.rule_params()
    learn = jax.jit(agent.learner_step, static_argnums=(5,))

    @jax.jit
    def act(params, carry, key):
        def one(carry, step_key):
            env_state, timestep, memory = carry
            out, memory = agent.actor_step(params, step_key, timestep, memory)
            env_state, timestep = env.step(env_state, out.actions)
            return (env_state, timestep, memory), out

        return jax.lax.scan(one, carry, jax.random.split(key, T))

    carry = (*env.reset(key), actor_state)
    replay: collections.deque = collections.deque(maxlen=CAPACITY)
    draws = np.random.default_rng(seed)
    catches: collections.deque = collections.deque(maxlen=WINDOW)
    for step in range(1, num_steps + 1):
        key, act_key, learn_key = jax.random.split(key, 3)
        carry, out = act(learner.params, carry, act_key)
        fields = (out.observations, out.actions, out.rewards, out.discounts, out.logits)
        fields = jax.device_get(fields)
        replay.extend(jax.tree.map(lambda x, i=i: x[:, i], fields) for i in range(NUM_ENVS))
        catches.append(((fields[2] > 0).sum(), (fields[3] == 0).sum()))
        if len(replay) >= B:
            chosen = [replay[i] for i in draws.integers(len(replay), size=B)]
            batch = jax.tree.map(lambda *x: np.stack(x, 1), *chosen)
            rollout = reference.rollout_of(*batch)
            learner, _, _ = learn(learn_key, rollout, learner, actor_state, rule_params, False)
        if step % EVERY == 0:
            caught, ended = map(sum, zip(*catches, strict=True))
            print(json.dumps({"step": step, "success": float(caught / ended)}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
