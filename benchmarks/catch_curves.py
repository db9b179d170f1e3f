"""Catch with Disco103, several seeds: learning curves beside the reference's.

    python -m benchmarks.catch_curves                       # five seeds, the reference's settings
    python -m benchmarks.catch_curves --name episode-starts-learnt -- --mask-episode-starts False

The settings are the reference's: 2 environments, 29 steps, batches of 64 from a replay of 1024,
learning rate 0.01. It leaves the first step of each episode out of the loss; the second command
does not. Writes a plot and a table to benchmarks/results. Whatever follows ``--`` goes to
``discorl train``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from matplotlib.figure import Figure

SHOWN: tuple[int, ...] = (100, 200, 300, 400, 500, 550, 600, 650, 700, 750, 800, 900, 1000)
RESULTS = Path(__file__).parent / "results"

# The JAX reference with the same settings: catch rate over the last 50 steps, three seeds.
REFERENCE = {
    0: (0.11, 0.12, 0.09, 0.14, 0.12, 0.17, 0.29, 0.59, 0.98, 0.995, 1.0, 1.0, 1.0),
    1: (0.15, 0.13, 0.14, 0.12, 0.25, 0.36, 0.86, 0.995, 1.0, 1.0, 1.0, 1.0, 1.0),
    2: (0.13, 0.12, 0.13, 0.13, 0.15, 0.13, 0.14, 0.15, 0.22, 0.79, 0.985, 1.0, 1.0),
}


def run(seed: int, options: list[str], folder: Path) -> dict[int, float]:
    """Catch rate over the last 50 steps, by training step."""
    command = [sys.executable, "-m", "discorl", "train", "catch", "--rule", "disco103"]
    command += ["--seed", str(seed), "--out", str(folder), "--progress", "lines", *options]
    subprocess.run(command, check=True)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["success"] for row in rows}


def step_to(curve: dict[int, float], rate: float) -> int | None:
    """The first step at which the rate is reached."""
    return next((step for step, value in sorted(curve.items()) if value >= rate), None)


def last_hundred(curve: dict[int, float]) -> float:
    """Catch rate over the last 100 steps: two windows of 50."""
    last = max(curve)
    return (curve[last] + curve[last - 50]) / 2


def table(curves: dict[int, dict[int, float]], command: str) -> str:
    """Markdown: our seeds, then the reference's."""
    steps = [s for s in SHOWN if all(s in c for c in curves.values())]
    head = ["seed", *map(str, steps), "step to 95 %", "last 100"]
    lines = [f"Made by `{command}`.", "", "Catch rate over the last 50 training steps.", ""]
    lines += [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for seed, curve in curves.items():
        cells = [f"{curve[s]:.3f}" for s in steps]
        lines.append(
            f"| {seed} | {' | '.join(cells)} | {step_to(curve, 0.95)} | {last_hundred(curve):.3f} |"
        )
    for seed, values in REFERENCE.items():
        curve = dict(zip(SHOWN, values, strict=True))
        cells = [f"{curve[s]:.3f}" for s in steps]
        lines.append(f"| JAX reference {seed} | {' | '.join(cells)} | {step_to(curve, 0.95)} | |")
    return "\n".join(lines) + "\n"


def plot(curves: dict[int, dict[int, float]], path: Path) -> None:
    """All seeds in one picture, the reference's dashed."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axis = figure.subplots()
    for seed, curve in curves.items():
        axis.plot(*zip(*sorted(curve.items()), strict=True), label=f"discorl, seed {seed}")
    for seed, values in REFERENCE.items():
        style = {"color": "grey", "linestyle": "--", "alpha": 0.7}
        axis.plot(SHOWN, values, label="JAX reference" if seed == 0 else None, **style)
    axis.set(
        xlabel="training step", ylabel="catch rate", ylim=(0, 1.02), title="Catch 8x8, Disco103"
    )
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--jobs", type=int, default=1, help="seeds that run at the same time")
    parser.add_argument("--name", default="reference-settings", help="suffix of the files written")
    parser.add_argument("options", nargs="*", help="options of discorl train, after --")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:
        runs = {s: pool.submit(run, s, args.options, Path(folder) / str(s)) for s in args.seeds}
        curves = {seed: future.result() for seed, future in runs.items()}
    command = " ".join(["python -m benchmarks.catch_curves", *sys.argv[1:]])
    text = table(curves, command)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"catch-disco103-{args.name}.md").write_text(text)
    plot(curves, RESULTS / f"catch-disco103-{args.name}.png")
    print(text)


if __name__ == "__main__":
    main()
