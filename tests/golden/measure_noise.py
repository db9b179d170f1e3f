"""Measures the reference's own rounding: ``noise.json``, from which the limits of a replay come.

    python -m tests.golden.measure_noise FOLDER

``FOLDER`` holds golden files, and below ``float64/`` files of the same names with the reference's
results in float64 (``reference/sample.py`` makes both). For each quantity of each family of files
the largest distance between the two is kept, in the unit of ``tolerances.Units``. Nothing of ours
is run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from .files import load
from .kinds import recognise
from .tolerances import NOISE, Units, noise_key


def distances(rounded: Path, exact: Path) -> tuple[str, list[tuple[str, float]]]:
    """The family of a file, and how far each array is from the exact one."""
    arrays, kind = load(rounded), recognise(load(rounded))
    units, found = Units(kind, arrays), []
    with np.load(exact, allow_pickle=False) as results:
        for name in results:
            distance = np.abs(arrays[name] - results[name]).max(initial=0.0)
            if distance:
                found.append((noise_key(name), float(distance) / units.of(name)))
    return kind.family, found


def main() -> None:
    folder = Path(sys.argv[1])
    noise: dict[str, dict[str, float]] = {}
    for exact in sorted((folder / "float64").glob("*.npz")):
        family, found = distances(folder / exact.name, exact)
        kept = noise.setdefault(family, {})
        for key, distance in found:
            kept[key] = max(kept.get(key, 0.0), float(f"{distance:.1e}"))
    NOISE.write_text(json.dumps(noise, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
