"""The JAX reference's agent for images, which it has none for: its own rule and heads in Haiku.

In front of them are the convolutions that ours has, in the format that suits XLA.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import haiku as hk
import jax
import jax.numpy as jnp

from benchmarks.peers.jax_modules import nets, types
from benchmarks.worker import PIXELS


class PixelNet(nets.MLPHeadNet):
    """The reference's network with convolutions instead of its MLP."""

    def __init__(self, is_impala: bool, **settings) -> None:
        super().__init__(**settings)
        self._convolutions = impala if is_impala else nature

    def _embedding_pass(self, inputs, should_reset=None):
        (images,) = jax.tree.leaves(inputs)
        x = self._convolutions(images.astype(jnp.float32) / 255)
        return jax.nn.relu(hk.Linear(PIXELS.dense)(hk.Flatten()(x)))


def nature(x):
    for channels, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
        x = jax.nn.relu(hk.Conv2D(channels, kernel, stride, padding="VALID")(x))
    return x


def impala(x):
    for channels in (16, 32, 32):
        x = hk.max_pool(hk.Conv2D(channels, 3)(x), (3, 3, 1), (2, 2, 1), "SAME")
        for _ in range(2):
            inner = hk.Conv2D(channels, 3)(jax.nn.relu(x))
            x = x + hk.Conv2D(channels, 3)(jax.nn.relu(inner))
    return jax.nn.relu(x)


def see_pixels(agent, is_impala: bool):
    """The reference's agent, with such a network instead of its own."""
    settings = {
        "is_impala": is_impala,
        "out_spec": agent.update_rule.flat_output_spec(agent.single_action_spec),
        "model_out_spec": agent.update_rule.model_output_spec(agent.single_action_spec),
        "action_spec": agent.single_action_spec,
        "head_w_init_std": 1e-2,
        "model_arch_name": "lstm",
        "model_kwargs": {"head_mlp_hiddens": (PIXELS.hidden,), "lstm_size": PIXELS.hidden},
    }

    def transformed(call):
        return hk.without_apply_rng(hk.transform_with_state(call))

    init, one_step = transformed(lambda *args: PixelNet(**settings)(*args))
    _, unroll = transformed(lambda *args: PixelNet(**settings).unroll(*args))
    agent._network = types.PolicyNetwork(init=init, one_step=one_step, unroll=unroll)
    return agent
