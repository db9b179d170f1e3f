"""Presets of discovery."""

from __future__ import annotations

import math

from discorl.discover_presets import notebook, paper
from discorl.runs.discover_setup import meta_optimiser


def test_the_notebook_does_not_clip_the_steps_of_the_rule() -> None:
    assert meta_optimiser(notebook()).max_abs_update == math.inf
    assert meta_optimiser(paper()).max_abs_update == 1.0
