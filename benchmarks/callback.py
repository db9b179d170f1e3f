"""What a callback that does nothing costs, as a share of a training step on Catch.

    python -m benchmarks.callback

The two are timed apart, because the difference of whole runs with and without one is lost in their
noise: a call takes less than a step varies. Processor time, so that a busy machine does not matter.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from discorl.runs.distributed import Ranks
from discorl.runs.metrics import Row
from discorl.training.config import TrainConfig
from discorl.training.train import Training
from discorl.training.watching import Watchers

WARM_UPS, STEPS, CALLS = 40, 40, 100_000


def measure(rule: str, folder: Path) -> tuple[float, float]:
    """Seconds of a training step, and of showing it to a callback; a row every tenth time."""
    config = TrainConfig(rule=rule, out=folder, device="cpu")
    ranks = Ranks(0, 1, torch.device("cpu"))
    program = Training(config, ranks, watchers=Watchers(callback=lambda run: None))
    program.begin()
    times = []
    for _ in range(WARM_UPS + STEPS):
        start = time.process_time()
        program.step(folder)
        times.append(time.process_time() - start)
    row: Row = {"step": program.state.step, **program.row()}
    start = time.process_time()
    for i in range(CALLS):
        program.watch(folder, row if i % config.log_every == 0 else None)
        program.asked()
    return median(times[WARM_UPS:]), (time.process_time() - start) / CALLS


def main() -> None:
    """A table, by rule."""
    torch.set_num_threads(1)
    print("| rule | step, ms | callback, ms | share |\n|---|---|---|---|")
    for rule in ("disco103", "disco-mini", "actor-critic", "policy-gradient"):
        with tempfile.TemporaryDirectory() as folder:
            step, call = measure(rule, Path(folder))
        print(f"| {rule} | {1e3 * step:.2f} | {1e3 * call:.4f} | {call / step:.4%} |")


if __name__ == "__main__":
    main()
