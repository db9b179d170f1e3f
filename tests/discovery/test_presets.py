"""Presets of discovery."""

from __future__ import annotations

import math

from discorl.discovery.presets import notebook, paper


def test_the_notebook_does_not_clip_the_steps_of_the_rule() -> None:
    assert notebook().meta_optimiser.limit == math.inf
    assert paper().meta_optimiser.limit == 1.0
