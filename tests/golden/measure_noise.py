"""Measures the reference's own rounding: ``noise.json``, from which the limits of a replay come.

    python -m tests.golden.measure_noise FOLDER

``FOLDER`` is made by ``reference/sample.py``: golden files, below ``float64/`` files of the same
names with the reference's results in float64, and below ``jittered/`` its float32 results for the
meta-gradient files kept here, with inputs that are off in the last digit. For each quantity of each
family of files the largest distance from the float64 result is stored, in the unit of
``tolerances.Units``; for the meta-gradient files kept here, that of each array. Nothing of ours is
run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from .files import digest, load
from .kinds import recognise
from .replay import relative_error
from .tolerances import NOISE, Units, noise_key

GOLDEN = NOISE.parent


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


def of_families(folder: Path) -> dict[str, dict[str, float]]:
    noise: dict[str, dict[str, float]] = {}
    for exact in sorted((folder / "float64").glob("*.npz")):
        family, found = distances(folder / exact.name, exact)
        kept = noise.setdefault(family, {})
        for key, distance in found:
            kept[key] = max(kept.get(key, 0.0), float(f"{distance:.1e}"))
    return noise


def of_golden_files(jittered: Path) -> dict[str, dict[str, float]]:
    """Of each array of the meta-gradient files kept here: the largest in several float32 runs."""
    noise: dict[str, dict[str, float]] = {}
    for path in (*GOLDEN.glob("meta_*.npz"), *(GOLDEN / "other_sizes").glob("meta_*.npz")):
        exact, runs = load(GOLDEN / "float64" / path.name), jittered.glob(f"{path.stem}-*.npz")
        kept = noise.setdefault(digest(load(path)), {})
        for run in (load(path), *map(load, sorted(runs))):
            for name in (name for name in exact if name.startswith("meta_grads")):
                distance = relative_error(name, run[name], exact[name])
                kept[name] = max(kept.get(name, 0.0), float(f"{distance:.1e}"))
    return noise


def main() -> None:
    folder = Path(sys.argv[1])
    families = of_families(folder)
    # An entry whose gradient is nothing but rounding is rare, and as likely in any family.
    params = max(noise.get("params", 0.0) for noise in families.values())
    for noise in families.values():
        noise |= {"params": params} if "params" in noise else {}
    stored = {"families": families, "files": of_golden_files(folder / "jittered")}
    NOISE.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
