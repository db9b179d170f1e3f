"""The kinds of golden files, recognised by their arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from discorl.errors import DiscorlError
from discorl.meta.window import MemoryMode

from . import learner, values
from .agents import brings_rule
from .files import Arrays, group
from .meta_gradient import float32_noise, meta_gradient
from .values import Results


@dataclass(frozen=True)
class Kind:
    """A kind of golden file."""

    name: str
    ways: dict[str, Callable[[Arrays], Results]]
    """Our results by the names of the file, in all the ways there are to get them."""
    must_compare: str
    """What a replay compares at the least (a regular expression); a file without proves nothing."""
    is_disco103: bool = False
    """Whether it needs the published rule, because the file brings none."""
    needs: tuple[str, ...] = ()
    """Arrays without which a file is not whole."""
    own_noise: Callable[[Arrays], dict[str, float]] | None = None
    """How exact we are in each module of a rule, where that differs much between files."""

    @property
    def family(self) -> str:
        """Kinds whose rounding was measured apart."""
        return f"{self.name} of Disco103" if self.is_disco103 else self.name


def recognise(arrays: Arrays) -> Kind:
    """The kind of a golden file, from the arrays it has."""
    if group(arrays, "valid_rollout"):
        modes = {mode: functools.partial(meta_gradient, mode=mode) for mode in get_args(MemoryMode)}
        compared = r"\w+/meta_grads(_norm)?/.*"
        is_disco103 = not brings_rule(arrays)
        return Kind(
            "meta-gradient", modes, compared, is_disco103, ("meta_loss",), own_noise=float32_noise
        )
    if group(arrays, "retrace_0"):
        return Kind("value estimation", {"": values.value_estimation}, "retrace_0/adv")
    if "out/loss_per_step" in arrays:
        return Kind("policy gradient", {"": values.policy_gradient}, "loss_per_step")
    if "params_0/mlp/action_cond/linear/w" in arrays:
        is_disco103 = not brings_rule(arrays)
        return Kind("disco learner", {"": learner.disco}, "params_final", is_disco103)
    if "params_0/mlp/~_head_pass/torso_head_1/~/linear_0/w" in arrays:
        return Kind("actor-critic learner", {"": learner.actor_critic}, "params_final")
    raise DiscorlError("not a kind of golden file that is known")
