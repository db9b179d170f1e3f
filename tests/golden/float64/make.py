"""Runs the JAX reference in float64 on golden meta-gradient files, and keeps what it gives.

    DISCO_RL_PATH=SOURCE_TREE DISCORL_DISCO103=FILE python tests/golden/float64/make.py NAME...

Needs the packages of benchmarks/peers/jax_reference.txt. Takes minutes a file, since nothing is
compiled. The reference's own float32 results have two or three good digits for Disco103; against
these ours can be held exactly.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import os
import sys
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)
chex.Array = jax.Array  # the reference tests isinstance(x, chex.Array), which newer chex refuses
sys.path.insert(0, os.environ["DISCO_RL_PATH"])

import distrax  # noqa: E402
import rlax  # noqa: E402
from disco_rl import agent as agent_lib  # noqa: E402
from disco_rl import types, utils  # noqa: E402
from disco_rl.value_fns import value_fn  # noqa: E402
from dm_env import specs  # noqa: E402

KEPT = 32  # entries of each array


def nested(arrays, prefix=""):
    """{module/leaf: array} below ``prefix`` as {module: {leaf: float64}}."""
    found: dict = {}
    for name, array in arrays.items():
        if name.startswith(prefix):
            module, leaf = name.removeprefix(prefix).rsplit("/", 1)
            found.setdefault(module, {})[leaf] = jnp.asarray(array, jnp.float64)
    return found


def in_float64(tree):
    is_float = lambda x: jnp.issubdtype(x.dtype, jnp.floating)  # noqa: E731
    return jax.tree.map(lambda x: x.astype(jnp.float64) if is_float(x) else x, tree)


def rollout_of(arrays, prefix):
    field = lambda name: jnp.asarray(arrays[f"{prefix}/{name}"])  # noqa: E731
    logits = in_float64(field("behaviour_logits"))
    return types.ActorRollout(
        observations={"observation": in_float64(field("observations"))},
        actions=field("actions"),
        rewards=in_float64(field("rewards")),
        discounts=in_float64(field("discounts")),
        agent_outs={"logits": logits},
        states={},
        logits=logits,
    )


def make_agent(arrays):
    """The agent and the rule with the sizes of the file's arrays."""
    size = lambda name: arrays[f"params_0/{name}/b"].shape[0]  # noqa: E731
    settings = agent_lib.get_settings_disco()
    settings.learning_rate = 3e-3
    settings.net_settings.net_args = {
        "dense": tuple(size(f"mlp/~_embedding_pass/torso/~/linear_{i}") for i in range(2)),
        "model_arch_name": "lstm",
        "head_w_init_std": 1e-2,
        "model_kwargs": {
            "head_mlp_hiddens": (size("mlp/mlp/~/linear_0"),),
            "lstm_size": size("mlp/linear"),
        },
    }
    if any(name.startswith("meta_params/") for name in arrays):  # the small random rule
        settings.update_rule.num_bins, settings.update_rule.max_abs_value = 21, 10.0
        net = settings.update_rule.net
        net.prediction_size, net.hidden_size, net.embedding_size = 12, 16, (8, 1)
        net.policy_channels, net.policy_target_channels = (6, 2), (5,)
        net.meta_rnn_kwargs = {
            "policy_channels": (6, 2),
            "embedding_size": (7,),
            "pred_embedding_size": (8, 1),
            "hidden_size": 9,
        }
    num_actions = size("mlp/~_head_pass/torso_head/~/linear_0")
    shape = arrays["train_rollout_0/observations"].shape[2:]
    return agent_lib.Agent(
        single_observation_spec={"observation": specs.Array(shape, np.float64)},
        single_action_spec=specs.BoundedArray((), np.int32, 0, num_actions - 1),
        agent_settings=settings,
        batch_axis_name=None,
    )


def make_value_function(arrays):
    width = arrays["value_params_0/value_fn/~_embedding_pass/torso/~/linear_0/b"].shape[0]
    config = types.ValueFnConfig(
        net="mlp",
        net_args={"dense": (width,), "head_w_init_std": 1e-2, "action_spec": ()},
        learning_rate=1e-3,
        max_abs_update=1.0,
        discount_factor=0.99,
        td_lambda=0.96,
        outer_value_cost=1.0,
    )
    return value_fn.ValueFunction(config, axis_name=None)


def meta_gradient(arrays, rule_params):
    """The loss of the public notebook (PAPER.md) and its gradient."""
    agent, judge, key = make_agent(arrays), make_value_function(arrays), jax.random.PRNGKey(0)
    params = nested(arrays, "params_0/")
    meta_state = dict(agent.initial_learner_state(key).meta_state) | {"target_params": params}
    learner = agent_lib.LearnerState(
        params=params,
        opt_state=in_float64(agent._optimizer.init(params)),
        meta_state=in_float64(meta_state),
    )
    value_params = nested(arrays, "value_params_0/")
    value = types.ValueState(
        params=value_params,
        state={},
        opt_state=in_float64(judge._value_opt.init(value_params)),
        adv_ema_state=in_float64(judge._adv_ema.init_state()),
        td_ema_state=in_float64(judge._td_ema.init_state()),
    )
    num_updates = len({n.split("/")[0] for n in arrays if n.startswith("train_rollout_")})
    training = [rollout_of(arrays, f"train_rollout_{i}") for i in range(num_updates)]
    validation = rollout_of(arrays, "valid_rollout")

    def loss(rule_params, learner, value):
        outputs = []
        for rollout in training:
            predictions, _ = agent.unroll_net(learner.params, {}, rollout)
            learner, _, log = agent.learner_step(key, rollout, learner, {}, rule_params, True)
            value, _, _ = judge.update(value, rollout, predictions["logits"])
            outputs.append(log["meta_out"])
        seen, _ = agent.unroll_net(learner.params, {}, validation)
        judged, _, _, _ = judge.get_value_outs(value, validation, seen["logits"])
        logits, actions = seen["logits"][:-1], validation.actions[:-1]
        advantage = jax.lax.stop_gradient(judged.normalized_adv)
        total = utils.differentiable_policy_gradient_loss(
            logits, actions, adv_t=advantage, backprop=False
        ).mean()

        entropy = lambda x: distrax.Softmax(x).entropy().mean()  # noqa: E731
        z_of_taken = utils.batch_lookup(seen["z"][:-1], actions)
        total -= 1e-2 * entropy(logits) + 1e-3 * (entropy(seen["y"]) + entropy(z_of_taken))
        for name in ("y", "z", "pi"):
            total += 1e-3 * jnp.mean(jnp.stack([out[name].mean() ** 2 for out in outputs]))
        for out in outputs:
            before = jax.lax.stop_gradient(out["target_out"]["logits"][:-1])
            distance = rlax.categorical_kl_divergence(before, out["pi"]).mean()
            total += 1e-2 * distance / num_updates
        return total, learner.params

    return jax.value_and_grad(loss, has_aux=True)(rule_params, learner, value)


def flat(tree, prefix):
    return {
        f"{prefix}/{module}/{leaf}": np.asarray(array)
        for module, leaves in tree.items()
        for leaf, array in leaves.items()
    }


def main() -> None:
    here = Path(__file__).parent
    for name in sys.argv[1:]:
        arrays = dict(np.load(here.parent / f"{name}.npz", allow_pickle=False))
        rule = nested(arrays, "meta_params/")
        is_small = bool(rule)
        if not is_small:
            rule = nested(dict(np.load(os.environ["DISCORL_DISCO103"], allow_pickle=False)))
        (loss, params), gradient = meta_gradient(arrays, rule)
        kept = {"meta_loss": np.asarray(loss)} | flat(params, "params_final")
        if is_small:
            kept |= flat(gradient, "meta_grads")
        else:  # a few entries of each array stand for it, as in the float32 file
            first = jax.tree.map(lambda x: x.ravel()[:KEPT], gradient)
            norms = jax.tree.map(jnp.linalg.norm, gradient)
            kept |= flat(first, "meta_grads_first32") | flat(norms, "meta_grads_norm")
        np.savez(here / f"{name}.npz", allow_pickle=False, **kept)
        print(name, float(loss))


if __name__ == "__main__":
    main()
