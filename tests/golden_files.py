"""The golden files, as parameters of tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.builders import GOLDEN
from tests.golden.files import load
from tests.golden.kinds import recognise

PATHS = sorted(GOLDEN.glob("*.npz"))
OTHER_SIZES = sorted((GOLDEN / "other_sizes").glob("*.npz"))
IN_FLOAT64 = sorted((GOLDEN / "float64").glob("*.npz"))


def needs_disco103(path: Path) -> bool:
    return "disco103" in path.stem


def each(paths: list[Path]) -> Any:
    return [
        pytest.param(p, id=p.stem, marks=pytest.mark.disco103 if needs_disco103(p) else [])
        for p in paths
    ]


LEARNER_STEPS = [p for p in PATHS + OTHER_SIZES if recognise(load(p)).name.endswith("learner")]
"""Those that hold whole updates of an agent."""
