"""Steps of discovery with the classes of the JAX reference.

Its public notebook has agents one by one, which act ahead of their updates; ``meta_step`` does the
same. In ``discover_catch`` agents act between updates, each with a gradient and an Adam of its own,
as ours do in the preset suite; they are under ``vmap``, or in turn with ``--agents-in-turn``.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import sys

import distrax
import jax
import jax.numpy as jnp
import optax
import rlax
from ml_collections import config_dict

from benchmarks.peers.jax_modules import agent_lib, jittable_envs, types, utils, value_fn
from benchmarks.worker import NOTEBOOK, SUITE_CATCH, CatchDiscovery, Job

IN_TURN = "--agents-in-turn" in sys.argv[1:]
MAX_NORM, MAX_ABS_UPDATE = 1e3, 1.0
"""Of an agent's gradient of the rule, and of each number that its Adam makes of it."""


class MetaAgent:
    """One agent of a discovery: how it acts, and what its learning says of the rule."""

    def __init__(self, sizes: CatchDiscovery) -> None:
        self.sizes = sizes
        board = config_dict.ConfigDict({"rows": sizes.board, "columns": sizes.board})
        self.env = jittable_envs.CatchJittableEnvironment(sizes.envs, board)
        self.agent = agent_lib.Agent(
            single_observation_spec=self.env.single_observation_spec(),
            single_action_spec=self.env.single_action_spec(),
            agent_settings=agent_settings(sizes),
            batch_axis_name=None,
        )
        config = types.ValueFnConfig(
            net="mlp",
            net_args={"dense": sizes.value_torso, "head_w_init_std": 1e-2, "action_spec": ()},
            learning_rate=1e-3,
            max_abs_update=1.0,
            discount_factor=0.99,
            td_lambda=sizes.value_lambda,
            outer_value_cost=1.0,
        )
        self.judge = value_fn.ValueFunction(config, axis_name=None)

    def start(self, key):
        keys = jax.random.split(key, 4)
        shape = (self.sizes.envs,)
        unseen = utils.zeros_like_spec(self.env.single_observation_spec(), prepend_shape=shape)
        return {
            "learner": self.agent.initial_learner_state(keys[0]),
            "value": self.judge.initial_state(keys[1], unseen),
            "world": (*self.env.reset(keys[2]), self.agent.initial_actor_state(keys[3])),
        }

    def act(self, state, key, num_steps: int):
        params = jax.lax.stop_gradient(state["learner"].params)

        def one(world, step_key):
            env_state, timestep, actor_state = world
            out, actor_state = self.agent.actor_step(params, step_key, timestep, actor_state)
            env_state, timestep = self.env.step(env_state, out.actions)
            return (env_state, timestep, actor_state), out

        world, steps = jax.lax.scan(one, state["world"], jax.random.split(key, num_steps))
        return state | {"world": world}, types.ActorRollout.from_timestep(steps)

    def learn(self, rule, state, rollout, key):
        """An update by the rule, and what its targets add to the public notebook's loss."""
        learner, actor_state = state["learner"], state["world"][2]
        seen, _ = self.agent.unroll_net(learner.params, actor_state, rollout)
        after, _, log = self.agent.learner_step(key, rollout, learner, actor_state, rule, True)
        value, _, _ = self.judge.update(state["value"], rollout, seen["logits"])
        out = log["meta_out"]
        before = jax.lax.stop_gradient(out["target_out"]["logits"][:-1])
        added = 1e-2 * rlax.categorical_kl_divergence(before, out["pi"]).mean()
        added += 1e-3 * sum(jnp.square(out[name].mean()) for name in ("y", "z", "pi"))
        return state | {"learner": after, "value": value}, added

    def validate(self, state, validation):
        """The public notebook's loss of the updated agent."""
        seen, _ = self.agent.unroll_net(state["learner"].params, state["world"][2], validation)
        judged, _, _, _ = self.judge.get_value_outs(state["value"], validation, seen["logits"])
        logits, actions = seen["logits"][:-1], validation.actions[:-1]
        loss = utils.differentiable_policy_gradient_loss(
            logits, actions, adv_t=jax.lax.stop_gradient(judged.normalized_adv), backprop=False
        ).mean()
        entropy = lambda x: distrax.Softmax(x).entropy().mean()  # noqa: E731
        z_of_taken = utils.batch_lookup(seen["z"][:-1], actions)
        return loss - 1e-2 * entropy(logits) - 1e-3 * (entropy(seen["y"]) + entropy(z_of_taken))

    def gradient_ahead(self, rule, state, key):
        """The rule's gradient, and the agent after a window whose rollouts come first."""
        keys = jax.random.split(key, self.sizes.updates + 1)
        rollouts = []
        for act_key in keys[:-1]:
            state, rollout = self.act(state, act_key, self.sizes.steps)
            rollouts.append(rollout)
        state, validation = self.act(state, keys[-1], self.sizes.judged_steps)

        def loss(rule):
            update = lambda state, rollout: self.learn(rule, state, rollout, key)  # noqa: E731
            after, added = jax.lax.scan(update, state, utils.tree_stack(rollouts))
            return self.validate(after, validation) + added.mean(), after

        return jax.grad(loss, has_aux=True)(rule)

    def gradient(self, rule, state, key):
        """The same where each rollout is made by the agent that the last update left."""
        keys = jax.random.split(key, self.sizes.updates + 1)

        def loss(rule):
            def update(state, key):
                state, rollout = self.act(state, key, self.sizes.steps)
                return self.learn(rule, state, rollout, key)

            after, added = jax.lax.scan(update, state, keys[:-1])
            after, validation = self.act(after, keys[-1], self.sizes.judged_steps)
            return self.validate(after, validation) + added.mean(), after

        return jax.grad(loss, has_aux=True)(rule)


def agent_settings(sizes: CatchDiscovery):
    """The reference's, with these sizes."""
    settings = agent_lib.get_settings_disco()
    settings.learning_rate = sizes.learning_rate
    settings.net_settings.net_args = {
        "dense": sizes.torso,
        "model_arch_name": "lstm",
        "head_w_init_std": 1e-2,
        "model_kwargs": {"head_mlp_hiddens": (sizes.hidden,), "lstm_size": sizes.hidden},
    }
    rule = settings.update_rule
    rule.net.prediction_size = sizes.prediction
    rule.net.hidden_size = sizes.rule_hidden
    rule.net.meta_rnn_kwargs.hidden_size = sizes.rule_lifetime_hidden
    rule.num_bins, rule.max_abs_value = sizes.bins, sizes.max_abs_value
    rule.value_discount = settings.hyper_params.discount_factor = sizes.discount
    return settings


def stepping(step, carry) -> Job:
    """A job that takes a step of discovery, from the state that the last one left."""
    step, key = jax.jit(step), jax.random.PRNGKey(1)

    def run() -> None:
        nonlocal carry, key
        key, own = jax.random.split(key)
        carry = jax.block_until_ready(step(carry, own))

    return Job(run)


def meta_step() -> Job:
    """All agents act and learn, and the rule follows the gradient through what they learnt."""
    agents = [MetaAgent(NOTEBOOK) for _ in range(NOTEBOOK.agents)]
    key = jax.random.PRNGKey(0)
    optimiser = optax.adam(NOTEBOOK.rule_learning_rate)
    rule, _ = agents[0].agent.update_rule.init_params(key)
    keys = jax.random.split(key, len(agents))
    states = [a.start(k) for a, k in zip(agents, keys, strict=True)]

    def step(carry, key):
        rule, opt_state, states = carry
        keys = jax.random.split(key, len(agents))
        results = [
            agent.gradient_ahead(rule, state, own_key)
            for agent, state, own_key in zip(agents, states, keys, strict=True)
        ]
        gradients, after = zip(*results, strict=True)
        mean = jax.tree.map(lambda *g: sum(g) / len(g), *gradients)
        updates, opt_state = optimiser.update(mean, opt_state)
        return optax.apply_updates(rule, updates), opt_state, list(after)

    return stepping(step, (rule, optimiser.init(rule), states))


def discover_catch() -> Job:
    """The same with the agents of our preset suite that are on Catch."""
    agent, key = MetaAgent(SUITE_CATCH), jax.random.PRNGKey(0)
    adam, limit = optax.scale_by_adam(), MAX_ABS_UPDATE
    rule, _ = agent.agent.update_rule.init_params(key)
    states = jax.vmap(agent.start)(jax.random.split(key, SUITE_CATCH.agents))
    opt_states = utils.tree_stack([adam.init(rule)] * SUITE_CATCH.agents)

    def gradient_step(rule, opt_state, state, key):
        gradient, after = agent.gradient(rule, state, key)
        scaled, moved = adam.update(gradient, opt_state)
        sound = optax.global_norm(gradient) <= MAX_NORM  # which NaN is not
        wanted = jax.tree.map(lambda g: jnp.where(sound, g.clip(-limit, limit), 0.0), scaled)
        opt_state = jax.tree.map(lambda new, old: jnp.where(sound, new, old), moved, opt_state)
        return wanted, sound, opt_state, after

    def step(carry, key):
        rule, opt_states, states = carry
        keys = jax.random.split(key, SUITE_CATCH.agents)
        own = (opt_states, states, keys)
        if IN_TURN:
            results = jax.lax.map(lambda x: gradient_step(rule, *x), own)
        else:
            results = jax.vmap(gradient_step, (None, 0, 0, 0))(rule, *own)
        steps, sound, opt_states, states = results
        rate = SUITE_CATCH.rule_learning_rate / jnp.maximum(sound.sum(), 1)
        rule = jax.tree.map(lambda p, s: p - rate * s.sum(0), rule, steps)
        return rule, opt_states, states

    return stepping(step, (rule, opt_states, states))
