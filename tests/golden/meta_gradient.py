"""Our results for meta-gradient files, in every memory mode."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from discorl import tree
from discorl.agents.agent import Agent, adam_clip
from discorl.meta.estimators.base import MetaGradient
from discorl.meta.meta_value import MetaValue, MetaValueState, ValueNet
from discorl.meta.objective import ObjectiveWeights
from discorl.meta.window import MemoryMode, Window
from discorl.nets.torsos import MLPTorso
from discorl.ops import moments
from discorl.rules.format import reference_name
from discorl.types import Params, RuleState

from .agents import (
    SETTINGS,
    agent_name,
    agent_params,
    disco_rule,
    in_precision_of,
    initial_state,
    net_for,
    transposed,
)
from .files import Arrays, count, group, rollout_of
from .given_rollouts import GivenRollouts
from .given_rollouts import meta_gradient as gradient_through
from .values import Results


def value_name(name: str) -> str:
    """Our name of the reference's parameter of the meta-value function."""
    leaf = {"w": "weight", "b": "bias"}[name[-1]]
    if m := re.search(r"torso/~/linear_(\d+)/[wb]$", name):
        return f"torso.mlp.layers.{m.group(1)}.{leaf}"
    return f"head.{leaf}"


def value_params(arrays: Arrays) -> Params:
    """Meta-value parameters from the reference's."""
    return {value_name(k): torch.from_numpy(np.ascontiguousarray(v.T)) for k, v in arrays.items()}


def meta_gradient_inputs(arrays: Arrays) -> tuple[Window, tuple]:
    """What a file gives to ``meta_gradient``."""
    rule, rule_params = disco_rule(arrays)
    params = agent_params(group(arrays, "params_0"), "y")
    optimiser = adam_clip(SETTINGS.disco_learning_rate)
    agent = Agent(net_for(params, rule), rule, optimiser)
    targets = group(arrays, "target_params_0")
    start = initial_state(agent, params, agent_params(targets, "y") if targets else None)

    v_params = value_params(group(arrays, "value_params_0"))
    layers = [p for name, p in v_params.items() if name.endswith("bias") and "torso" in name]
    num_inputs = v_params["torso.mlp.layers.0.weight"].shape[1]
    torso = MLPTorso(
        num_inputs, [len(v_params[f"torso.mlp.layers.{i}.bias"]) for i in range(len(layers))]
    )
    meta_value = MetaValue(
        ValueNet(torso, torso.embedding_size),
        adam_clip(SETTINGS.value_learning_rate),
        SETTINGS.value_returns,
        aligned=False,
    )
    fresh = RuleState(moments.init_moments(), moments.init_moments())
    v_start = MetaValueState(v_params, meta_value.optimiser.init(v_params), fresh)
    rollouts = [
        rollout_of(group(arrays, f"train_rollout_{i}"))
        for i in range(count(arrays, "train_rollout"))
    ]
    valid = rollout_of(group(arrays, "valid_rollout"))
    window = Window(agent, meta_value, ObjectiveWeights())
    start, v_start = in_precision_of(arrays, (start, v_start))
    return window, (rule_params, start, v_start, rollouts, valid)


def through(window: Window, inputs: tuple, mode: MemoryMode) -> MetaGradient:
    """The meta-gradient for rule, agent, value function, training rollouts, validation rollout."""
    rule_params, state, value_state, training, validation = inputs
    source = GivenRollouts(training, validation)
    return gradient_through(window, rule_params, state, value_state, source, mode)


NUM_JITTERS, JITTER = 6, 2.0**-23  # float32 runs with inputs off by about a unit in the last place


def float32_noise(arrays: Arrays) -> dict[str, float]:
    """How far our float32 runs are from our float64 one in the gradient of each module of the rule.

    Adam divides by the root of the second moment. Where a gradient is nothing but rounding, the
    derivative of its step is enormous, and the meta-gradient has two good digits or none.
    """
    window, inputs = meta_gradient_inputs(arrays)
    generator = torch.Generator().manual_seed(0)

    def jittered(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        return x * (1 + JITTER * torch.randn(x.shape, generator=generator))

    def widened(x: Tensor) -> Tensor:
        return x.double() if x.is_floating_point() else x

    exact = through(window, tree.map(widened, inputs), "plain").gradient
    noise: dict[str, float] = {}
    for _ in range(NUM_JITTERS):
        rounded = through(window, tree.map(jittered, inputs), "plain").gradient
        for name, want in exact.items():
            error = float((rounded[name] - want).abs().max() / want.abs().max().clamp(min=1e-12))
            module = reference_name(name).rsplit("/", 1)[0]
            noise[module] = max(noise.get(module, 0.0), error)
    return noise


def meta_gradient(arrays: Arrays, mode: MemoryMode) -> Results:
    """Meta-loss, its parts, its gradient, and what the agent and its judge became."""
    result = through(*meta_gradient_inputs(arrays), mode)
    values = result.values
    found: Results = {
        "meta_loss": result.loss,
        "meta_log/adv": values.advantage.mean(),
        "meta_log/normalized_adv": values.normalized_advantage.mean(),
        "meta_log/pg": result.policy_loss,
        "meta_log/reg": result.regulariser,
        "meta_log/value": values.value.mean(),
    }
    for name in group(arrays, "params_final"):
        ours = agent_name(name).replace("second", "y")
        found[f"params_final/{name}"] = transposed(result.life.agents.params[ours])
    for name in group(arrays, "value_params_final"):
        found[f"value_params_final/{name}"] = transposed(
            result.life.values.params[value_name(name)]
        )

    gradient = {reference_name(name): transposed(x) for name, x in result.gradient.items()}
    parts: dict[str, Callable[[Tensor, np.ndarray], Tensor]] = {
        "meta_grads": lambda x, want: x.reshape(want.shape),
        "meta_grads_norm": lambda x, _: x.norm(),
        "meta_grads_first32": lambda x, want: x.flatten()[: want.size],
    }
    for part, of in parts.items():
        for name, want in group(arrays, part).items():
            found[f"{part}/{name}"] = of(gradient[name], want)
    return found
