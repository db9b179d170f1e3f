"""The modules of the JAX reference, from the source tree that DISCO_RL_PATH names."""

# pyright: reportMissingImports=false
from __future__ import annotations

import os
import sys

import chex
import jax

chex.Array = jax.Array  # the reference tests isinstance(x, chex.Array), which newer chex refuses
sys.path.insert(0, os.environ["DISCO_RL_PATH"])

from disco_rl import agent as agent_lib  # noqa: E402
from disco_rl import types, utils  # noqa: E402
from disco_rl.environments import jittable_envs  # noqa: E402
from disco_rl.networks import nets  # noqa: E402
from disco_rl.value_fns import value_fn  # noqa: E402

__all__ = ["agent_lib", "jittable_envs", "nets", "types", "utils", "value_fn"]
