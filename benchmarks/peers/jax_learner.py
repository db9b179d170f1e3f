"""The JAX reference's learner alone: batches come in, parameters go out, see ``pipe.py``.

Says its initial parameters, is told those to begin with, and then answers each batch with the
parameters after learning from it.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers.jax_reference import Learner, rollout_of
from benchmarks.peers.pipe import Arrays, receive, send


def flat(params) -> Arrays:
    return {
        f"{module}/{leaf}": np.asarray(x)
        for module, leaves in params.items()
        for leaf, x in leaves.items()
    }


def nested(arrays: Arrays):
    params: dict = {}
    for name, x in arrays.items():
        module, leaf = name.rsplit("/", 1)
        params.setdefault(module, {})[leaf] = jnp.asarray(x)
    return params


def main() -> None:
    into, out = sys.stdin.buffer, sys.stdout.buffer
    learner = Learner(3)
    send(out, flat(learner.state.params))
    start = receive(into)
    if start is None:
        return
    params, state = nested(start), learner.state
    learner.state = type(state)(
        params=params,
        opt_state=state.opt_state,
        meta_state=state.meta_state | {"target_params": jax.tree.map(jnp.array, params)},
    )
    while batch := receive(into):
        fields = ("observations", "actions", "rewards", "discounts", "logits")
        learner.step(rollout_of(*(batch[name] for name in fields)))
        send(out, flat(learner.state.params))


if __name__ == "__main__":
    main()
