"""Which settings help Disco103 on small Gymnasium tasks: one change of the preset at a time.

    python -m benchmarks.preset_study run     # a queue; stop it whenever you like
    python -m benchmarks.preset_study run --changes preset updates16 --seeds 101
    python -m benchmarks.preset_study table   # what there is so far

What a finished run comes to is kept in results/preset-study.json, and not run again; runs that were
stopped are resumed. The seeds, from 100 on, are never reported elsewhere: presets are chosen here
and judged there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from discorl.atomic import write_atomically

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
    "updates16-estimate": "--updates-per-step 16 --estimate-values",
    "updates16-lr1e-2": "--updates-per-step 16 --optimiser.learning-rate 1e-2",
    "updates16-lr1e-3": "--updates-per-step 16 --optimiser.learning-rate 1e-3",
    "updates16-fresh": "--updates-per-step 16 --replay-share 0.5",
}
RESULTS = Path(__file__).parent / "results" / "preset-study.json"


def run(out: Path, tasks: Sequence[str], changes: Sequence[str], seeds: Sequence[int]) -> None:
    """Work through the queue, one run at a time on one thread."""
    for seed, change, task in itertools.product(seeds, changes, tasks):
        name = key(task, change, seed)
        if name in kept():
            continue
        settings = ["--steps", "500", *CHANGES[change].split()]
        train_or_resume(out / name, [task, "--rule", "disco103", "--seed", str(seed), *settings])
        if has_ended(out / name):
            new = kept() | {name: means(out / name)}
            write_atomically(RESULTS, (json.dumps(new, indent=1) + "\n").encode())


def key(task: str, change: str, seed: int) -> str:
    """What a run is called."""
    return f"{task.removeprefix('gym:')} {change} {seed}".replace(" ", "-")


def kept() -> dict[str, list[float]]:
    """Return over the last tenth and over the whole run, for each run that has ended."""
    return json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}


def means(folder: Path) -> list[float]:
    """Return over the last tenth, and over the whole run."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    returns = [row["return"] for row in rows if "return" in row]
    parts = (returns[-max(1, len(returns) // 10) :], returns)
    return [round(sum(x) / len(x), 2) if x else float("nan") for x in parts]


def train_or_resume(folder: Path, arguments: list[str]) -> None:
    """``discorl train`` with these arguments on one thread, unless the run has ended."""
    if has_ended(folder):
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


def has_ended(folder: Path) -> bool:
    """Whether a run has made all its steps. One that was stopped has a curve, too."""
    if not (folder / "curve.png").exists():
        return False
    steps = json.loads((folder / "config.json").read_text())["steps"]
    rows = (folder / "metrics.jsonl").read_text().splitlines()
    return bool(rows) and json.loads(rows[-1])["step"] >= steps


def table() -> str:
    """For each change and task, what every seed came to at the end and over the whole run."""
    found = kept()
    lines = ["| change | " + " | ".join(TASKS) + " |", "|---" * (len(TASKS) + 1) + "|"]
    for change in CHANGES:
        cells = []
        for task in TASKS:
            ends = [found.get(key(task, change, seed)) for seed in SEEDS]
            cells.append(", ".join(f"{x[0]:.4g} ({x[1]:.4g})" for x in ends if x))
        if any(cells):
            lines.append(f"| {change} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run, or show what there is."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.preset_study",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--changes", nargs="+", default=list(CHANGES), choices=CHANGES)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, choices=SEEDS)
    parser.add_argument("--out", type=Path, default=Path("runs/preset-study"), help="the runs")
    options = parser.parse_args()
    if options.what == "run":
        run(options.out, options.tasks, options.changes, options.seeds)
    else:
        print(table())


if __name__ == "__main__":
    main()
