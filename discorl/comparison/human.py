"""Scores on a scale where a human tester scores 1, for tasks that have one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from discorl.envs.suites.atari_scores import human_normalised
from discorl.errors import DiscorlError


def human_scale(task: str) -> Callable[[float], float] | None:
    """From a return to a human-normalised score; None where no human was tested."""
    family, _, game = task.partition(":")
    if family != "ale":
        return None
    try:
        human_normalised(game, 0.0)
    except DiscorlError:
        return None
    return partial(human_normalised, game)
