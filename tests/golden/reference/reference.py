"""What the JAX reference makes of the inputs of a golden file, in the layout of these files.

``results`` recognises the kind of a file by its inputs and reads every size from them. The
reference is found through DISCO_RL_PATH, Disco103 through DISCORL_DISCO103. Needs the packages of
benchmarks/peers/jax_reference.txt. It computes in float32, as the reference does, or in float64
(``use_floats``), where its rounding is gone.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_default_matmul_precision", "highest")  # float32 on every device
chex.Array = jax.Array  # the reference tests isinstance(x, chex.Array), which newer chex refuses
sys.path.insert(0, os.environ["DISCO_RL_PATH"])

import distrax  # noqa: E402
import rlax  # noqa: E402
from disco_rl import agent as agent_lib  # noqa: E402
from disco_rl import types, utils  # noqa: E402
from disco_rl.update_rules import policy_gradient as policy_gradient_lib  # noqa: E402
from disco_rl.value_fns import value_fn, value_utils  # noqa: E402
from dm_env import specs  # noqa: E402

Arrays = dict[str, np.ndarray]
Tree = dict[str, dict[str, Any]]  # {module: {leaf: array}}, as the reference keeps parameters

KEY = jax.random.PRNGKey(0)  # nothing that is compared depends on it
DISCO_LEARNING_RATE, ACTOR_CRITIC_LEARNING_RATE = 3e-3, 5e-3
NUM_RETRACES = 2  # the second with doubled logits, and with the moments that the first left

ACTION_VALUE_NAMES = (
    *("adv", "normalized_adv", "q_td", "normalized_q_td", "qv_adv", "normalized_qv_adv"),
    *("q_value", "target_q_value", "q_target", "rho"),
    *("value", "target_value", "value_target", "td"),
)
STATE_VALUE_NAMES = ("adv", "normalized_adv", "td", "normalized_td", "value", "value_target", "rho")
DISCO_TARGET_NAMES = (
    *("adv", "normalized_adv", "q_td", "q_target", "qv_adv", "normalized_qv_adv"),
    *("pi", "meta_input_emb"),
)
ACTOR_CRITIC_TARGET_NAMES = ("raw_advs", "tds", "value_target", "values")


# --- precision -----------------------------------------------------------------------------------


def use_floats(bits: int) -> None:
    """Compute in floats of 32 or 64 bits from here on."""
    jax.config.update("jax_enable_x64", bits == 64)


def as_float(x: Any) -> jax.Array:
    return jnp.asarray(x, jnp.float64 if jax.config.jax_enable_x64 else jnp.float32)


def with_floats(tree: Any) -> Any:
    """The same with all floats of the precision in use: the reference starts states in float32."""
    is_float = lambda x: jnp.issubdtype(jnp.asarray(x).dtype, jnp.floating)  # noqa: E731
    return jax.tree.map(lambda x: as_float(x) if is_float(x) else x, tree)


# --- arrays of a file ----------------------------------------------------------------------------

INPUT = re.compile(
    r"(in|(target_|value_)?params_0|meta_params|(train_)?rollout_\d+|valid_rollout)/.*|tx/x"
)


def inputs_of(arrays: Arrays) -> Arrays:
    """What the reference was given to make the rest."""
    return {name: array for name, array in arrays.items() if INPUT.fullmatch(name)}


def below(arrays: Arrays, prefix: str) -> Arrays:
    """The arrays below ``prefix/``."""
    start = f"{prefix}/"
    return {k.removeprefix(start): v for k, v in arrays.items() if k.startswith(start)}


def nested(arrays: Arrays) -> Tree:
    """{module/leaf: array} as the reference's parameters."""
    tree: Tree = {}
    for name, array in arrays.items():
        module, leaf = name.rsplit("/", 1)
        tree.setdefault(module, {})[leaf] = as_float(array)
    return tree


def flat(tree: Tree, prefix: str) -> Arrays:
    """The opposite of ``nested``, below ``prefix/``."""
    return {
        f"{prefix}/{module}/{leaf}": np.asarray(array)
        for module, leaves in tree.items()
        for leaf, array in leaves.items()
    }


def named(source: Any, names: Iterable[str], prefix: str) -> Arrays:
    """Attributes or entries of ``source``, below ``prefix/``."""
    get = source.__getitem__ if isinstance(source, dict) else lambda name: getattr(source, name)
    return {f"{prefix}/{name}": np.asarray(get(name)) for name in names}


def rollouts_of(arrays: Arrays, prefix: str) -> list[types.ActorRollout]:
    """The rollouts ``prefix_0``, ``prefix_1`` and so on."""
    rollouts = []
    while given := below(arrays, f"{prefix}_{len(rollouts)}"):
        rollouts.append(rollout_of(given))
    return rollouts


def rollout_of(given: Arrays) -> types.ActorRollout:
    logits = as_float(given["behaviour_logits"])
    return types.ActorRollout(
        observations={"observation": as_float(given["observations"])},
        actions=jnp.asarray(given["actions"], jnp.int32),
        rewards=as_float(given["rewards"]),
        discounts=as_float(given["discounts"]),
        agent_outs={"logits": logits},
        states={},
        logits=logits,
    )


# --- agents and their sizes ----------------------------------------------------------------------


@dataclass(frozen=True)
class RuleSizes:
    """Widths of a rule's networks, by default those of the first small files."""

    prediction: int = 12
    hidden: int = 16
    embedding: tuple[int, ...] = (8, 1)
    action_channels: tuple[int, ...] = (6, 2)
    policy_channels: tuple[int, ...] = (5,)
    lifetime_hidden: int = 9
    lifetime_embedding: tuple[int, ...] = (7,)
    lifetime_prediction_embedding: tuple[int, ...] = (8, 1)
    lifetime_action_channels: tuple[int, ...] = (6, 2)


@dataclass(frozen=True)
class AgentSizes:
    """Widths of an agent's network, by default those of the first small files."""

    num_actions: int
    observation: tuple[int, ...] = (4, 3)
    torso: tuple[int, ...] = (14, 10)
    lstm: int = 8
    head_hidden: tuple[int, ...] = (9,)
    num_bins: int = 21
    """Of the value: one apart, and as many above 0 as below."""


def mlp_widths(arrays: Arrays, module: str) -> tuple[int, ...]:
    widths: list[int] = []
    while (bias := arrays.get(f"{module}/~/linear_{len(widths)}/b")) is not None:
        widths.append(len(bias))
    return tuple(widths)


def conv_channels(arrays: Arrays, module: str) -> tuple[int, ...]:
    channels: list[int] = []
    name = "conv1_d"
    while (bias := arrays.get(f"{module}/{name}/b")) is not None:
        channels.append(len(bias))
        name = f"conv1_d_{len(channels)}"
    return tuple(channels)


def agent_sizes_of(params: Arrays, observation: tuple[int, ...]) -> AgentSizes:
    num_actions = len(params["mlp/~_head_pass/torso_head/~/linear_0/b"])
    torso = mlp_widths(params, "mlp/~_embedding_pass/torso")
    if "mlp/linear/b" not in params:  # an actor-critic
        num_bins = len(params["mlp/~_head_pass/torso_head_1/~/linear_0/b"])
        return AgentSizes(num_actions, observation, torso, num_bins=num_bins)
    *head_hidden, num_bins = mlp_widths(params, "mlp/mlp_2")
    lstm = len(params["mlp/linear/b"])
    return AgentSizes(num_actions, observation, torso, lstm, tuple(head_hidden), num_bins)


def rule_sizes_of(params: Arrays) -> RuleSizes:
    lifetime = "lstm/~/meta_lstm/~unroll"
    return RuleSizes(
        prediction=len(params["lstm/linear_2/b"]),
        hidden=len(params["lstm/linear/b"]),
        embedding=mlp_widths(params, "lstm/mlp"),
        action_channels=conv_channels(params, "lstm/sequential"),
        policy_channels=conv_channels(params, "lstm/sequential_1"),
        lifetime_hidden=len(params[f"{lifetime}/lstm/linear/b"]) // 4,
        lifetime_embedding=mlp_widths(params, f"{lifetime}/mlp_2"),
        lifetime_prediction_embedding=mlp_widths(params, f"{lifetime}/mlp"),
        lifetime_action_channels=conv_channels(params, f"{lifetime}/sequential"),
    )


def make_agent(settings: Any, sizes: AgentSizes) -> agent_lib.Agent:
    settings.net_settings.net_args = {
        "dense": sizes.torso,
        "model_arch_name": "lstm",
        "head_w_init_std": 1e-2,
        "model_kwargs": {"head_mlp_hiddens": sizes.head_hidden, "lstm_size": sizes.lstm},
    }
    settings.update_rule.num_bins = sizes.num_bins
    settings.update_rule.max_abs_value = (sizes.num_bins - 1) / 2
    return agent_lib.Agent(
        single_observation_spec={"observation": specs.Array(sizes.observation, np.float32)},
        single_action_spec=specs.BoundedArray((), np.int32, 0, sizes.num_actions - 1),
        agent_settings=settings,
        batch_axis_name=None,
    )


@functools.cache
def make_actor_critic(sizes: AgentSizes) -> agent_lib.Agent:
    settings = agent_lib.get_settings_actor_critic()
    settings.learning_rate = ACTOR_CRITIC_LEARNING_RATE
    return make_agent(settings, sizes)


@functools.cache
def make_disco_agent(sizes: AgentSizes, rule: RuleSizes | None) -> agent_lib.Agent:
    """An agent that learns by a rule of these sizes, or by Disco103."""
    settings = agent_lib.get_settings_disco()
    settings.learning_rate = DISCO_LEARNING_RATE
    if rule is not None:
        net = settings.update_rule.net
        net.prediction_size, net.hidden_size = rule.prediction, rule.hidden
        net.embedding_size = rule.embedding
        net.policy_channels = rule.action_channels
        net.policy_target_channels = rule.policy_channels
        net.meta_rnn_kwargs = {
            "policy_channels": rule.lifetime_action_channels,
            "embedding_size": rule.lifetime_embedding,
            "pred_embedding_size": rule.lifetime_prediction_embedding,
            "hidden_size": rule.lifetime_hidden,
        }
    return make_agent(settings, sizes)


@functools.cache
def make_value_function(torso: tuple[int, ...]) -> value_fn.ValueFunction:
    config = types.ValueFnConfig(
        net="mlp",
        net_args={"dense": torso, "head_w_init_std": 1e-2, "action_spec": ()},
        learning_rate=1e-3,
        max_abs_update=1.0,
        discount_factor=0.99,
        td_lambda=0.96,
        outer_value_cost=1.0,
    )
    return value_fn.ValueFunction(config, axis_name=None)


def agent_of(inputs: Arrays, first_rollout: str) -> tuple[agent_lib.Agent, Tree]:
    """The agent of a file and the parameters of its rule."""
    params, rule = below(inputs, "params_0"), below(inputs, "meta_params")
    sizes = agent_sizes_of(params, inputs[f"{first_rollout}/observations"].shape[2:])
    if not is_disco(inputs):
        agent = make_actor_critic(sizes)
        return agent, agent.update_rule.init_params(KEY)[0]
    if rule:
        return make_disco_agent(sizes, rule_sizes_of(rule)), nested(rule)
    disco103 = dict(np.load(os.environ["DISCORL_DISCO103"], allow_pickle=False))
    return make_disco_agent(sizes, None), nested(disco103)


def is_disco(inputs: Arrays) -> bool:
    return "params_0/mlp/action_cond/linear/w" in inputs


def initial_learner(agent: agent_lib.Agent, inputs: Arrays) -> agent_lib.LearnerState:
    """A new learner with the parameters of the file."""
    params = nested(below(inputs, "params_0"))
    fresh = agent.initial_learner_state(KEY)
    chex.assert_trees_all_equal_shapes(fresh.params, params)
    meta_state = dict(fresh.meta_state)
    if is_disco(inputs):
        meta_state["target_params"] = nested(below(inputs, "target_params_0")) or params
    return agent_lib.LearnerState(
        params=params,
        opt_state=with_floats(agent._optimizer.init(params)),
        meta_state=with_floats(meta_state),
    )


# --- results by kind -----------------------------------------------------------------------------


def results(inputs: Arrays) -> Arrays:
    """What the reference makes of the inputs of a file of any kind."""
    if "valid_rollout/actions" in inputs:
        return meta_gradient(inputs)
    if "in/q" in inputs:
        return value_estimation(inputs)
    if "in/logits" in inputs:
        return policy_gradient(inputs)
    return learner(inputs)


def value_estimation(inputs: Arrays) -> Arrays:
    given = with_floats({k: jnp.asarray(v) for k, v in below(inputs, "in").items()})
    moving_average = utils.MovingAverage(as_float(0.0), decay=0.99, eps=1e-6)
    fresh = with_floats(moving_average.init_state())
    rollout = types.UpdateRuleInputs(
        observations=None,
        actions=given["actions"],
        rewards=given["rewards"],
        is_terminal=given["is_terminal"],
        behaviour_agent_out={"logits": given["mu_logits"]},
        agent_out={"logits": given["pi_logits"]},
    )

    def estimate(*, v=None, q=None, target_q=None, max_abs, moments=(fresh, fresh)):
        values, *moments = value_utils.get_value_outs(
            value_net_out=v,
            target_value_net_out=None,
            q_net_out=q,
            target_q_net_out=target_q,
            rollout=rollout,
            pi_logits=given["pi_logits"],
            discount=0.997,
            lambda_=0.95,
            nonlinear_transform=True,
            categorical_value=max_abs is not None,
            max_abs_value=max_abs,
            drop_last=False,
            adv_ema_state=moments[0],
            adv_ema_fn=moving_average,
            td_ema_state=moments[1],
            td_ema_fn=moving_average,
        )
        return values, moments

    made: Arrays = {}
    num_bins = given["q"].shape[-1]
    max_abs = (num_bins - 1) / 2
    moments = (fresh, fresh)
    for i in range(NUM_RETRACES):
        q, target_q = given["q"] * 2**i, given["target_q"] * 2**i
        values, moments = estimate(q=q, target_q=target_q, max_abs=max_abs, moments=moments)
        made |= named(values, ACTION_VALUE_NAMES, f"retrace_{i}")

    v_max_abs = (given["v_categorical"].shape[-1] - 1) / 2
    for kind, v_max in (("categorical", v_max_abs), ("scalar", None)):
        output = given[f"v_{kind}"]
        values, _ = estimate(v=output, max_abs=v_max)
        made |= named(values, STATE_VALUE_NAMES, f"vtrace_{kind}")
        loss = value_utils.value_loss_from_td(
            output[:-1],
            values.td,
            nonlinear_transform=True,
            categorical_value=v_max is not None,
            max_abs_value=v_max,
        )
        made[f"vtrace_{kind}/loss_from_td"] = np.asarray(loss)

    x = as_float(inputs["tx/x"])
    squash, unsquash = rlax.SIGNED_HYPERBOLIC_PAIR
    transforms = {
        "signed_log1p": jnp.sign(x) * jnp.log1p(jnp.abs(x)),
        "signed_hyperbolic": squash(x),
        "signed_parabolic": unsquash(x / 40),
        "two_hot": value_utils.scalar_to_categorical_value(num_bins, x / 20, max_abs),
    }
    return made | named(transforms, transforms, "tx")


def policy_gradient(inputs: Arrays) -> Arrays:
    given = with_floats({k: jnp.asarray(v) for k, v in below(inputs, "in").items()})
    rule = policy_gradient_lib.PolicyGradientUpdate(entropy_cost=0.01, normalize_adv=True)
    rollout = types.UpdateRuleInputs(
        observations=None,
        actions=given["actions"],
        rewards=None,
        is_terminal=None,
        agent_out={"logits": given["logits"]},
        value_out=types.ValueOuts(adv=given["adv"], normalized_adv=given["normalized_adv"]),
    )
    targets, _ = rule.unroll_meta_net({}, {}, {}, {}, rollout, {}, None, None)
    loss, _ = rule.agent_loss(rollout, targets, {}, False)
    return {"out/loss_per_step": np.asarray(loss)}


def learner(inputs: Arrays) -> Arrays:
    """Some updates of an agent: what the rule made of each rollout, logs, and states after it."""
    agent, rule_params = agent_of(inputs, "rollout_0")
    state = initial_learner(agent, inputs)
    rollouts = rollouts_of(inputs, "rollout")
    unroll, step = compiled(agent)
    disco = is_disco(inputs)
    is_disco103 = disco and not below(inputs, "meta_params")

    made: Arrays = {}
    if not is_disco103:
        output, _ = unroll(state.params, {}, rollouts[0])
        made |= named(output, output, "agent_out_0")
    for i, rollout in enumerate(rollouts):
        state, _, log = step(KEY, rollout, state, {}, rule_params, False)
        targets = log.pop("meta_out")
        if disco:
            made |= named(targets, DISCO_TARGET_NAMES, f"targets_{i}")
            made |= prediction_targets(targets, f"targets_{i}", in_full=not is_disco103)
            lifetime = state.meta_state["rnn_state"]["lstm"]["meta_rnn_state"]
            prefix = f"meta_rnn_{i + 1}/lstm/meta_rnn_state"
            made |= named(lifetime, ("hidden", "cell"), prefix)
        else:
            made |= named(targets, ACTOR_CRITIC_TARGET_NAMES, f"targets_{i}")
        made |= named(log, log, f"log_{i}") | flat(state.params, f"params_{i + 1}")
        for name in ("adv_ema_state", "td_ema_state"):
            moments = state.meta_state[name]
            parts = ("moment1", "moment2", "decay_product")
            made |= named(moments, parts, f"{name}_{i + 1}")
    return made


@functools.cache
def compiled(agent: agent_lib.Agent) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The network and the learner step: compiled once for all files of a size."""
    is_meta_training = 5  # the place of this argument
    return jax.jit(agent.unroll_net), jax.jit(agent.learner_step, static_argnums=is_meta_training)


def prediction_targets(targets: dict[str, Any], prefix: str, *, in_full: bool) -> Arrays:
    """The targets of y and z; of Disco103's 600 entries a few stand for the rest."""
    if in_full:
        return named(targets, ("y", "z"), prefix)
    made: Arrays = {}
    for name in ("y", "z"):
        made[f"{prefix}/{name}_logsumexp"] = np.asarray(jax.nn.logsumexp(targets[name], -1))
        made[f"{prefix}/{name}_first8"] = np.asarray(targets[name][..., :8])
    return made


def meta_gradient(inputs: Arrays) -> Arrays:
    """The loss of the reference's notebook on meta-training after some updates, its gradient."""
    agent, rule_params = agent_of(inputs, "train_rollout_0")
    value_params = below(inputs, "value_params_0")
    judge = make_value_function(mlp_widths(value_params, "value_fn/~_embedding_pass/torso"))
    value = types.ValueState(
        params=nested(value_params),
        state={},
        opt_state=with_floats(judge._value_opt.init(nested(value_params))),
        adv_ema_state=with_floats(judge._adv_ema.init_state()),
        td_ema_state=with_floats(judge._td_ema.init_state()),
    )
    training = rollouts_of(inputs, "train_rollout")
    validation = rollout_of(below(inputs, "valid_rollout"))

    (total, (logs, params, value_params)), gradient = compiled_meta_gradient(agent, judge)(
        rule_params, initial_learner(agent, inputs), value, training, validation
    )
    made = {"meta_loss": np.asarray(total)} | named(logs, logs, "meta_log")
    made |= flat(params, "params_final") | flat(value_params, "value_params_final")
    if below(inputs, "meta_params"):
        return made | flat(gradient, "meta_grads")
    first = jax.tree.map(lambda x: x.ravel()[:32], gradient)  # a few entries stand for the rest
    norms = jax.tree.map(jnp.linalg.norm, gradient)
    return made | flat(first, "meta_grads_first32") | flat(norms, "meta_grads_norm")


@functools.cache
def compiled_meta_gradient(
    agent: agent_lib.Agent, judge: value_fn.ValueFunction
) -> Callable[..., Any]:
    """The loss of the reference's notebook on meta-training and its gradient in the rule."""

    def loss(rule_params, learner, value, training, validation):
        outputs = []
        for rollout in training:
            predictions, _ = agent.unroll_net(learner.params, {}, rollout)
            learner, _, log = agent.learner_step(KEY, rollout, learner, {}, rule_params, True)
            value, _, _ = judge.update(value, rollout, predictions["logits"])
            outputs.append(log["meta_out"])
        seen, _ = agent.unroll_net(learner.params, {}, validation)
        judged, _, _, _ = judge.get_value_outs(value, validation, seen["logits"])
        logits, actions = seen["logits"][:-1], validation.actions[:-1]
        advantage = jax.lax.stop_gradient(judged.normalized_adv)
        policy_loss = utils.differentiable_policy_gradient_loss(
            logits, actions, adv_t=advantage, backprop=False
        ).mean()

        entropy = lambda x: distrax.Softmax(x).entropy().mean()  # noqa: E731
        z_of_taken = utils.batch_lookup(seen["z"][:-1], actions)
        regulariser = -1e-2 * entropy(logits)
        regulariser -= 1e-3 * (entropy(seen["y"]) + entropy(z_of_taken))
        for name in ("y", "z", "pi"):
            regulariser += 1e-3 * jnp.mean(jnp.stack([out[name].mean() ** 2 for out in outputs]))
        for out in outputs:
            before = jax.lax.stop_gradient(out["target_out"]["logits"][:-1])
            distance = rlax.categorical_kl_divergence(before, out["pi"]).mean()
            regulariser += 1e-2 * distance / len(training)
        logs = {
            "adv": judged.adv.mean(),
            "normalized_adv": judged.normalized_adv.mean(),
            "value": judged.value.mean(),
            "pg": policy_loss,
            "reg": regulariser,
        }
        return policy_loss + regulariser, (logs, learner.params, value.params)

    return jax.jit(jax.value_and_grad(loss, has_aux=True))
