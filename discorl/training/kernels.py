"""Whether a run learns with the kernels in C++, which is decided before its first update.

They round differently from torch. So a run waits for them if they have to be compiled first, and
never changes over to them: the same seed gives the same bits, however long the compiler takes.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from discorl.errors import DiscorlError
from discorl.ops import native
from discorl.ops.native.library import NoCompiler
from discorl.runs import distributed
from discorl.runs.distributed import Ranks
from discorl.training.config import TrainConfig

VARIABLE = "DISCORL_KERNELS"
"""The default of ``--kernels``, for machines on which it should be another."""


def uses_kernels(config: TrainConfig, ranks: Ranks, before: dict[str, Any] | None = None) -> bool:
    """Whether this run uses the kernels, which are built if need be.

    ``before`` is the config.json of a run to resume: it goes on as it began, if it can.
    """
    asked = _asked(config, before)
    if asked == "off" or ranks.device.type != "cpu":
        return False
    problem = _shared_problem(ranks)
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
    elif not isinstance(problem, NoCompiler):
        warnings.warn(
            f"running without the CPU kernels, more slowly: {problem} (--kernels off stops this "
            "message)",
            stacklevel=2,
        )
    return False


def _asked(config: TrainConfig, before: dict[str, Any] | None) -> str:
    """What the run's settings say, and what they leave open: the old run, or the environment."""
    if config.kernels != "auto":
        return config.kernels
    if before:  # older versions had kernels for compiled runs only, and did not write it down
        return str(before.get("kernels", "auto" if config.compile else "off"))
    given = os.environ.get(VARIABLE, "auto")
    if given not in ("auto", "on", "off"):
        raise DiscorlError(f"{VARIABLE} should be auto, on or off, not {given!r:.40}: correct it")
    return given


def _shared_problem(ranks: Ranks) -> DiscorlError | None:
    """Why not all processes have the kernels, or None. The first builds, the others may find."""
    problem = _problem() if ranks.is_first else None
    distributed.any_of(False)
    if not ranks.is_first:
        problem = _problem()
    (lacking,) = distributed.any_of(problem is not None)
    if lacking and problem is None:
        return DiscorlError("another process could not build them")
    return problem


def _problem() -> DiscorlError | None:
    """Why the kernels cannot be built here; None if they are there now."""
    try:
        native.build()
    except DiscorlError as e:
        return e
    return None
