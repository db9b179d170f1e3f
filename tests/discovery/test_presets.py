"""Presets of discovery."""

from __future__ import annotations

import math

from discorl.discovery.build import meta_optimiser
from discorl.discovery.presets import notebook, paper


def test_the_notebook_does_not_clip_the_steps_of_the_rule() -> None:
    assert meta_optimiser(notebook()).max_abs_update == math.inf
    assert meta_optimiser(paper()).max_abs_update == 1.0
