"""Human-normalised scores, where there are any."""

from __future__ import annotations

import importlib
from collections.abc import Callable


def human_normalised(task: str) -> Callable[[float], float] | None:
    """From a return to a score on which a human tester has 1; None where no human was tested."""
    family, _, game = task.partition(":")
    if family != "ale":
        return None
    try:
        scores = importlib.import_module("discorl.envs.suites.atari_scores")
        scores.human_normalised(game, 0.0)
    except (ImportError, KeyError, ValueError):
        return None
    return lambda value: float(scores.human_normalised(game, value))
