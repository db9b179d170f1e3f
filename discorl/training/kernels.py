"""How a run computes: with the kernels in C++ or without, in bf16 or not.

That is decided before the first update, because it changes how numbers are rounded. A run waits
for kernels that have to be compiled first, and never changes over to them: the same seed gives the
same bits, however long the compiler takes.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import Any, Protocol

import torch

from discorl.errors import DiscorlError
from discorl.ops import native
from discorl.ops.native.library import NoCompiler
from discorl.runs import distributed
from discorl.runs.distributed import Ranks
from discorl.training.config import TrainConfig

VARIABLE = "DISCORL_KERNELS"
"""The default of ``--kernels``, for machines on which it should be another."""
GAIN = 1.2
"""Products of bfloat16 that are less than this many times as fast are not worth their rounding."""


class HasKernels(Protocol):
    """Settings of a run that may use the kernels: of training, or of discovery."""

    @property
    def kernels(self) -> str:
        """auto, on or off."""
        ...


def how_to_compute(
    config: TrainConfig, ranks: Ranks, before: dict[str, Any] | None = None
) -> TrainConfig:
    """The settings with these choices made; ``before`` is the config.json of a run to resume."""
    kernels = uses_kernels(config, ranks, before)
    bf16 = uses_bf16(config, ranks, kernels, before)
    return replace(
        config, kernels="on" if kernels else "off", precision="bf16" if bf16 else "float32"
    )


def uses_kernels(
    config: HasKernels,
    ranks: Ranks,
    before: dict[str, Any] | None = None,
    *,
    for_agents: bool = False,
) -> bool:
    """Whether this run uses the kernels, which are built if need be.

    A run that is resumed goes on as it began, if it can. Those ``for_agents`` side by side are for
    some processors only.
    """
    asked = _asked(config, before)
    if asked == "off" or ranks.device.type != "cpu":
        return False
    problem = _shared_problem(ranks, for_agents)
    if problem is None:
        return True
    if asked == "on" and not before:
        raise DiscorlError(f"--kernels on is impossible here: {problem}")
    if asked == "on":
        warnings.warn(
            f"the run began with the CPU kernels and goes on without ({problem}): results may "
            "differ in the last bits",
            stacklevel=2,
        )
    elif not isinstance(problem, NoCompiler | NoUse):
        warnings.warn(
            f"running without the CPU kernels, more slowly: {problem} (--kernels off stops this "
            "message)",
            stacklevel=2,
        )
    return False


def uses_bf16(
    config: TrainConfig, ranks: Ranks, kernels: bool, before: dict[str, Any] | None = None
) -> bool:
    """Whether this run rounds the factors of large products to bfloat16.

    A new run does if it was asked to and this machine gains by it. A resumed one goes on as it
    began, at whatever speed.
    """
    asked = before.get("precision", "float32") if before else config.precision
    if asked != "bf16":
        return False
    problem = _slow_bf16(ranks, kernels)
    if before:
        if problem:
            warnings.warn(f"the run began with bf16, and goes on slowly: {problem}", stacklevel=2)
        return True
    if problem:
        warnings.warn(f"using float32, not bf16: {problem}", stacklevel=2)
    return not problem


def _slow_bf16(ranks: Ranks, kernels: bool) -> str:
    """Why products of bfloat16 are not faster here; empty if they are, in all processes."""
    problem = ""
    if ranks.device.type == "cuda":
        if not torch.cuda.is_bf16_supported(including_emulation=False):
            problem = "this GPU has no bfloat16"
    elif not kernels:
        problem = "it takes the CPU kernels, which this run does not use"
    elif (gain := native.bf16_gain()) == 0:
        problem = "this processor has no AVX-512 BF16"
    elif gain < GAIN:
        problem = f"its products are only {gain:.2f} times as fast on this processor"
    (lacking,) = distributed.any_of(bool(problem))
    return problem or ("another process has no use for it" if lacking else "")


def _asked(config: HasKernels, before: dict[str, Any] | None) -> str:
    """What the run's settings say, and what they leave open: the old run, or the environment."""
    if config.kernels != "auto":
        return config.kernels
    if before:  # older versions had kernels for compiled runs only, and did not write it down
        return str(before.get("kernels", "auto" if getattr(config, "compile", False) else "off"))
    given = os.environ.get(VARIABLE, "auto")
    if given not in ("auto", "on", "off"):
        raise DiscorlError(f"{VARIABLE} should be auto, on or off, not {given!r:.40}: correct it")
    return given


def _shared_problem(ranks: Ranks, for_agents: bool) -> DiscorlError | None:
    """Why not all processes have the kernels, or None. The first builds, the others may find."""
    problem = _problem(for_agents) if ranks.is_first else None
    distributed.any_of(False)
    if not ranks.is_first:
        problem = _problem(for_agents)
    (lacking,) = distributed.any_of(problem is not None)
    if lacking and problem is None:
        return DiscorlError("another process could not build them")
    return problem


class NoUse(DiscorlError):  # noqa: N818 - reads as a sentence where it is caught
    """This processor has no such kernels, and nobody said that it had."""


def _problem(for_agents: bool) -> DiscorlError | None:
    """Why the kernels cannot be built here; None if they are there now."""
    if for_agents and not native.has_agent_axis():
        return NoUse("those of discovery need a processor with AVX-512")
    try:
        native.build()
    except DiscorlError as e:
        return e
    return None
