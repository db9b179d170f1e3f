"""Replays golden vectors of the JAX reference through discorl and prints the worst errors.

    python tests/golden_replay.py FILE...

The kind of a file is recognised by its arrays and every size is read from them. Settings that the
arrays do not tell are those under which the reference made them (``agents.Settings``). Exits with 1
if any quantity is off by more than its tolerance (``tolerances``). Errors are relative to the
largest entry of an array.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch import Tensor

from discorl.errors import DiscorlError

from .files import Arrays, count, inputs_of, load
from .kinds import recognise
from .tolerances import Limits, quantity_of
from .values import Results

NOT_OURS = re.compile(r"log_\d+/.*|\w+_0/.*")  # we do not log all that it does; states at the start


@dataclass
class Report:
    """Worst relative error of each quantity beside its tolerance."""

    file: str
    kind: str
    worst: dict[str, tuple[float, float]] = field(default_factory=dict)

    def check(self, quantity: str, error: float, allowed: float) -> None:
        before = self.worst.get(quantity, (0.0, allowed))
        # Of several steps, keep the one that comes closest to its limit or passes it.
        self.worst[quantity] = max(before, (error, allowed), key=lambda x: x[0] / x[1])

    @property
    def failures(self) -> list[str]:
        return [q for q, (error, tolerance) in self.worst.items() if error > tolerance]

    def show(self) -> None:
        verdict = "FAIL" if self.failures else "ok"
        print(f"{self.file}: {self.kind}: {verdict}")
        for quantity, (error, tolerance) in self.worst.items():
            mark = "  <-- past tolerance" if error > tolerance else ""
            print(f"  {quantity:42s} {error:9.2e}  (allowed {tolerance:.1e}){mark}")


def relative_error(name: str, got: Tensor | np.ndarray, want: np.ndarray) -> float:
    """The largest distance of any entry, relative to the largest entry."""
    actual = got.detach().double().numpy() if isinstance(got, Tensor) else got.astype(np.float64)
    expected = want.astype(np.float64)
    if actual.shape != expected.shape:
        raise AssertionError(f"{name}: shape {actual.shape}, reference {expected.shape}")
    if not expected.size:
        return 0.0
    error = float(np.abs(actual - expected).max() / max(np.abs(expected).max(), 1e-12))
    return float("inf") if np.isnan(error) else error


def compare(report: Report, limits: Limits, arrays: Arrays, found: Results, way: str) -> None:
    """Compare our results with those of the file."""
    last = f"params_{count(arrays, 'rollout')}/"
    for name, got in found.items():
        if name in arrays:
            quantity = "params_final" if name.startswith(last) else quantity_of(name)
            error = relative_error(name, got, arrays[name])
            report.check(f"{way}/{quantity}" if way else quantity, error, limits.of(name))
    unknown = arrays.keys() - found.keys() - inputs_of(arrays).keys()
    if unknown := [name for name in unknown if not NOT_OURS.fullmatch(name)]:
        raise DiscorlError(f"the file has results of no known kind: {', '.join(sorted(unknown))}")


def replay(path: Path) -> Report:
    """Replay one file."""
    return replay_arrays(path.name, load(path))


def replay_arrays(name: str, arrays: Arrays) -> Report:
    kind = recognise(arrays)
    report = Report(name, kind.name)
    for array in kind.needs:
        arrays[array]  # says so if it is missing
    limits = Limits(kind, arrays)
    limits.narrow()
    for way, results in kind.ways.items():
        compare(report, limits, arrays, results(arrays), way)
    if not any(re.fullmatch(kind.must_compare, quantity) for quantity in report.worst):
        raise DiscorlError(f"the file has no result to compare: {kind.must_compare}")
    return report


def main(paths: list[str]) -> int:
    if not paths:
        print(__doc__)
        return 2
    failed = False
    for path in paths:
        try:
            report = replay(Path(path))
        except Exception as e:  # whatever is wrong with one file, the others are replayed
            told = isinstance(e, DiscorlError | AssertionError)
            print(f"{Path(path).name}: FAIL: {e if told else f'{type(e).__name__}: {e}'}")
            failed = True
            continue
        report.show()
        failed |= bool(report.failures)
    return int(failed)
