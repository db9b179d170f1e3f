"""What kernels and bf16 add to the start of a run, once the kernels are in the cache.

    python -m benchmarks.startup

Whole commands, by turns: two steps of training on Catch, which are too few to learn anything.
Processor time, so that a busy machine does not matter.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from statistics import median

ROUNDS = 7
WAYS = {
    "--kernels off": ("--kernels", "off"),
    "as by default": (),
    "--precision bf16": ("--precision", "bf16"),
}


def processor_seconds(options: tuple[str, ...]) -> float:
    """Of a run, from the first line of Python to the last."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "discorl", "train", "catch", "--steps", "2"]
        command += ["--threads", "1", "--out", f"{folder}/run", *options]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, capture_output=True, env=env)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """A table."""
    processor_seconds(())  # which compiles the kernels if need be
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(ROUNDS):
        for name, options in WAYS.items():
            times[name].append(processor_seconds(options))
    least = median(times["--kernels off"])
    print("| | seconds | more |\n|---|---|---|")
    for name, seconds in times.items():
        print(f"| {name} | {median(seconds):.2f} | {median(seconds) - least:.2f} |")


if __name__ == "__main__":
    main()
