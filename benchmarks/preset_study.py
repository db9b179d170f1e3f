"""Which settings help Disco103 on small Gymnasium tasks: one change of the preset at a time.

    python -m benchmarks.preset_study run --out study      # a queue; stop it whenever you like
    python -m benchmarks.preset_study table --out study    # what there is so far

Runs that are finished are skipped, those that were stopped are resumed. The seeds, from 100 on, are
never reported elsewhere: presets are chosen here and judged there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

TASKS = (
    "gym:Acrobot-v1",
    "gym:CartPole-v1",
    "gym:LunarLander-v3",
    "gym:MountainCar-v0",
    "gym:FrozenLake-v1",
)
SEEDS = (100, 101, 102)
CHANGES = {
    "preset": "",
    "lr1e-3": "--optimiser.learning-rate 1e-3",
    "lr1e-2": "--optimiser.learning-rate 1e-2",
    "zero-values": "--net.zero-values",
    "estimate": "--estimate-values",
    "updates16": "--updates-per-step 16",
    "reward0.1": "--reward-scale 0.1",
    "normobs": "--normalize-observations",
    "wide": "--net.torso 512 512 --net.action-lstm 128 --net.head-hidden 128",
    "batch64": "--batch-size 64 --updates-per-step 1",
    "fresh": "--replay-share 0.5",
    "discount0.99": "--returns.discount 0.99",
    "starts": "--no-mask-episode-starts",
    "cosine": "--optimiser.schedule cosine",
}


def run(out: Path) -> None:
    """Work through the queue, one run at a time on one thread."""
    for seed, change, task in itertools.product(SEEDS, CHANGES, TASKS):
        folder = out / f"{task.removeprefix('gym:')}-{change}-{seed}"
        settings = ["--steps", "500", *CHANGES[change].split()]
        train_or_resume(folder, [task, "--rule", "disco103", "--seed", str(seed), *settings])


def train_or_resume(folder: Path, arguments: list[str]) -> None:
    """``discorl train`` with these arguments on one thread, unless the run has ended."""
    if (folder / "curve.png").exists():
        return
    if (folder / "config.json").exists():
        arguments = ["--resume", str(folder)]
    else:
        arguments = [*arguments, "--out", str(folder), "--checkpoint.every-minutes", "3"]
    command = [sys.executable, "-m", "discorl", "train", *arguments, "--progress", "none"]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False)
    print(f"{folder.name}: {'done' if done.returncode == 0 else 'failed'}", flush=True)
    if done.returncode == 0:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def table(out: Path) -> str:
    """Return over the last tenth and over the whole run, for each finished run."""
    lines = ["| task | change | seed | last tenth | whole run |", "|---|---|---|---|---|"]
    for task, change, seed in itertools.product(TASKS, CHANGES, SEEDS):
        folder = out / f"{task.removeprefix('gym:')}-{change}-{seed}"
        if not (folder / "curve.png").exists():
            continue
        rows: list[dict[str, Any]] = [
            json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()
        ]
        returns = [row["return"] for row in rows if "return" in row]
        last = returns[-max(1, len(returns) // 10) :]
        means = (f"{sum(x) / len(x):.2f}" for x in (last, returns))
        lines.append(f"| {task} | {change} | {seed} | {' | '.join(means)} |")
    return "\n".join(lines)


def main() -> None:
    """Run, or show what there is."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.preset_study",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--out", type=Path, default=Path("runs/preset-study"), help="the runs")
    options = parser.parse_args()
    if options.what == "run":
        run(options.out)
    else:
        print(table(options.out))


if __name__ == "__main__":
    main()
