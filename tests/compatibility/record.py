"""What a run left behind as plain values that JSON can hold, and how two such records differ.

Only what users rely on is used here: the command line, and files whose format is public. Inner
modules may move without these tests noticing.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import platform
import re
import runpy
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

RELATIVE, ABSOLUTE = 2e-2, 2e-4
"""Tolerances between kinds of machines. Adam divides by the size of a gradient, so rounding in a
gradient near 0 shows in the third digit of a sum of weights, and sometimes in the second; changes
of the algorithm show in the first."""
LOSS = re.compile(r"(^|/)(loss|loss/\w+|(total|pi|aux|y|z|q|value)_loss)$")
LOSS_RELATIVE, LOSS_ABSOLUTE = 1e-6, 1e-7
"""Of reported losses, even on one kind of machine. They were recorded when differences of large
logits still cost them their last digits. No state of a run and no gradient depends on them."""
LONG = 12
"""Lists of more numbers than this are recorded as arrays."""


def run_command(*args: str) -> str:
    """Run ``python -m discorl ARGS`` with one thread and return what it printed.

    It runs in this process, because a new one needs seconds to import torch. Warnings are not
    errors: that a run began with another torch must not stop it.
    """
    said, threads = io.StringIO(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with (
            mock.patch.object(sys, "argv", ["discorl", *args]),
            contextlib.redirect_stdout(said),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            runpy.run_module("discorl", run_name="__main__")
    except SystemExit as stop:
        if stop.code:
            raise RuntimeError(f"'discorl {' '.join(args)}' returned {stop.code}") from stop
    finally:
        torch.set_num_threads(threads)
    return said.getvalue()


def fingerprint() -> str:
    """The kind of machine: where it is the same, so is every bit of a result."""
    words = [platform.machine(), torch.backends.cpu.get_cpu_capability()]
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().split("\n\n")[0].splitlines() if cpuinfo.exists() else []
    fields = dict(line.replace("\t", "").split(":", 1) for line in lines if ":" in line)
    words += [fields.get(name, "").strip() for name in ("vendor_id", "cpu family", "model")]
    return " ".join([f"torch {torch.__version__}", f"numpy {np.__version__}", *filter(None, words)])


def arrays(path: Path) -> dict[str, Any]:
    """A summary of each array of an .npz file; texts are kept as they are."""
    with np.load(path, allow_pickle=False) as file:
        return {name: summary(file[name]) for name in file.files}


def tensors(params: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The same for a dict of tensors, such as a module's ``state_dict``."""
    return {name: summary(x.detach().cpu().numpy()) for name, x in params.items()}


def summary(array: np.ndarray) -> Any:
    """The digest of an array, and a few numbers for machines that round otherwise."""
    if array.dtype.kind in "SU":
        return array.tolist()
    wide = array.astype(np.float64).ravel()
    places = sorted({0, len(wide) // 3, 2 * len(wide) // 3, len(wide) - 1}) if len(wide) else []
    return {
        "shape": list(array.shape),
        "dtype": str(array.dtype),
        "sha256": hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest(),
        "sum": _digits(wide.sum()),
        "abs_sum": _digits(np.abs(wide).sum()),
        "some": [_digits(wide[i]) for i in places],
    }


def rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl, without what the clock says."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in row.items() if "second" not in k} for row in lines]


def compact(value: Any) -> Any:
    """JSON content with its long lists of numbers summarised."""
    if isinstance(value, dict):
        return {k: compact(v) for k, v in value.items()}
    if isinstance(value, list):
        if len(value) > LONG and all(isinstance(v, int | float) for v in value):
            return summary(np.array(value, dtype=np.float64))
        return [compact(v) for v in value]
    return value


def run_record(folder: Path) -> dict[str, Any]:
    """Metrics and arrays of a run folder, of training or of discovery."""
    found: dict[str, Any] = {"metrics.jsonl": rows(folder / "metrics.jsonl")}
    for path in sorted(folder.glob("*.npz")):
        found[path.name] = arrays(path)
    return found


def differences(found: Any, expected: Any, exact: bool, where: str = "") -> list[str]:
    """Where two records differ: in any bit, or in more than rounding."""
    if isinstance(expected, dict) and isinstance(found, dict):
        out = [f"{where}/{k} is missing" for k in expected.keys() - found.keys()]
        out += [f"{where}/{k} is new" for k in found.keys() - expected.keys()]
        for k in expected.keys() & found.keys():
            if exact or k != "sha256":
                out += differences(found[k], expected[k], exact, f"{where}/{k}")
        return sorted(out)
    if isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            return [f"{where} has {len(found)} entries, not {len(expected)}"]
        pairs = enumerate(zip(found, expected, strict=True))
        return [d for i, (f, e) in pairs for d in differences(f, e, exact, f"{where}[{i}]")]
    is_loss = bool(LOSS.search(where))
    if isinstance(expected, float) and isinstance(found, int | float) and (is_loss or not exact):
        within = (LOSS_RELATIVE, LOSS_ABSOLUTE) if exact else (RELATIVE, ABSOLUTE)
        same = math.isclose(found, expected, rel_tol=within[0], abs_tol=within[1])
        same = same or (found != found and expected != expected)  # NaN
    else:
        same = found == expected or (found != found and expected != expected)  # NaN
    return [] if same else [f"{where} is {found!r}, not {expected!r}"]


def assert_recorded(found: Any, expected: Any, recorded_on: str) -> None:
    """Raise unless ``found`` is what was recorded: to the bit on the same kind of machine."""
    exact = fingerprint() == recorded_on
    found = json.loads(json.dumps(found))  # tuples are lists there
    if differing := differences(found, expected, exact):
        kind = "to the last bit" if exact else f"within rounding (recorded on {recorded_on})"
        listed = "\n  ".join(differing[:20])
        raise AssertionError(f"{len(differing)} values are not as recorded {kind}:\n  {listed}")


def write_record(path: Path, content: Any) -> None:
    """Write records as JSON, a line for each array so that changes can be read."""
    path.write_text(_lines(content) + "\n", encoding="utf-8")


def _lines(value: Any, indent: str = "") -> str:
    if isinstance(value, dict) and "sha256" not in value and value:
        inner = indent + " "
        parts = [f"{inner}{json.dumps(k)}: {_lines(v, inner)}" for k, v in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    return json.dumps(value)


def _digits(x: Any) -> float:
    """Seven digits are all that float32 has."""
    return float(f"{float(x):.7g}")
