"""Catch with Disco103, several seeds: learning curves beside the reference's.

    python -m benchmarks.catch_curves                       # five seeds, the reference's settings
    python -m benchmarks.catch_curves --reference-seeds 3 4 # and two more of the JAX reference
    python -m benchmarks.catch_curves --name episode-starts-learnt -- --mask-episode-starts False

The settings are the reference's: 2 environments, 29 steps, batches of 64 from a replay of 1024,
learning rate 0.01. It leaves the first step of each episode out of the loss; the last command does
not. Writes a plot, a table and all curves to benchmarks/results. Whatever follows ``--`` goes to
``discorl train``. Curves that are there already stay unless their seed is run again; those of the
reference never are. Its code is found as by ``python -m benchmarks``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from benchmarks.venvs import ROOT
from benchmarks.workers import jax_python, use_rule
from discorl.atomic import write_atomically

Curve = dict[int, float]
"""Catch rate over the last 50 steps, by training step."""

NUM_DEALS = 20_000
"""How often the runs are dealt out at random, to see how wide a spread luck makes."""
SHOWN: tuple[int, ...] = (100, 200, 300, 400, 500, 550, 600, 650, 700, 750, 800, 900, 1000)
RESULTS = Path(__file__).parent / "results"
STEM, DEFAULT_NAME = "catch-disco103-", "reference-settings"

# Three seeds of the JAX reference with the same settings, known from elsewhere.
KNOWN = {
    0: (0.11, 0.12, 0.09, 0.14, 0.12, 0.17, 0.29, 0.59, 0.98, 0.995, 1.0, 1.0, 1.0),
    1: (0.15, 0.13, 0.14, 0.12, 0.25, 0.36, 0.86, 0.995, 1.0, 1.0, 1.0, 1.0, 1.0),
    2: (0.13, 0.12, 0.13, 0.13, 0.15, 0.13, 0.14, 0.15, 0.22, 0.79, 0.985, 1.0, 1.0),
}


def run(seed: int, options: list[str], folder: Path) -> Curve:
    """A run of ours."""
    command = [sys.executable, "-m", "discorl", "train", "catch", "--rule", "disco103"]
    command += ["--seed", str(seed), "--out", str(folder), "--progress", "lines", *options]
    subprocess.run(command, check=True)
    return _curve((folder / "metrics.jsonl").read_text())


def run_reference(seed: int, python: Path) -> Curve:
    """A run of the JAX reference, from the source tree that DISCO_RL_PATH names."""
    command = [str(python), "-m", "benchmarks.peers.jax_catch", str(seed), str(max(SHOWN))]
    print(f"JAX reference, seed {seed}", flush=True)
    done = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return _curve(done.stdout)


def _curve(lines: str) -> Curve:
    rows = [json.loads(line) for line in lines.splitlines()]
    return {row["step"]: row["success"] for row in rows}


def step_to(curve: Curve, rate: float) -> int | None:
    """The first step at which the rate is reached."""
    return next((step for step, value in sorted(curve.items()) if value >= rate), None)


def last_hundred(curve: Curve) -> float:
    """Catch rate over the last 100 steps: two windows of 50."""
    last = max(curve)
    return (curve[last] + curve[last - 50]) / 2


def table(ours: dict[int, Curve], reference: dict[int, Curve], command: str) -> str:
    """Markdown: our seeds, then the reference's."""
    shown = (*ours.values(), *reference.values())
    steps = [s for s in SHOWN if all(s in c for c in shown)]
    head = ["seed", *map(str, steps), "step to 95 %", "last 100"]
    lines = [f"Made by `{command}`.", "", "Catch rate over the last 50 training steps.", ""]
    lines += [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    rows = {str(seed): curve for seed, curve in ours.items()}
    rows |= {f"JAX reference {seed}": curve for seed, curve in reference.items()}
    for name, curve in rows.items():
        cells = [f"{curve[s]:.3f}" for s in steps]
        last = f"{last_hundred(curve):.3f}" if max(curve) - 50 in curve else ""
        lines.append(f"| {name} | {' | '.join(cells)} | {step_to(curve, 0.95)} | {last} |")
    return "\n".join([*lines, "", spreads(ours, reference)]) + "\n"


def spreads(ours: dict[int, Curve], reference: dict[int, Curve]) -> str:
    """Whether we and the reference get to 95 % alike; a run that does not counts as its end."""
    steps = [np.array([step_to(c, 0.95) or max(c) for c in x.values()]) for x in (ours, reference)]
    if min(map(len, steps)) < 2:
        return "Too few seeds to compare."
    every, num = np.concatenate(steps), len(steps[0])
    observed = steps[0].std() - steps[1].std() - 1e-9  # less rounding, which the order changes
    rng, wider = np.random.default_rng(0), []
    for _ in range(NUM_DEALS):
        dealt = rng.permutation(every)
        wider.append(dealt[:num].std() - dealt[num:].std() >= observed)
    (mean, deviation), (mean_r, deviation_r) = ((x.mean(), x.std()) for x in steps)
    return (
        f"Step to 95 %: mean {mean:.0f}, standard deviation {deviation:.0f}; the reference's "
        f"{mean_r:.0f} and {deviation_r:.0f}, of which seeds 0 to 2 are known every 50 steps only. "
        f"With the runs dealt out at random the first would be that much wider spread with a "
        f"chance of {np.mean(wider):.2f}."
    )


def plot(ours: dict[int, Curve], reference: dict[int, Curve], path: Path) -> None:
    """All seeds in one picture, the reference's dashed."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axis = figure.subplots()
    axis.set_prop_cycle(color=colormaps["tab20"].colors)  # type: ignore[attr-defined]
    for seed, curve in ours.items():
        axis.plot(*zip(*sorted(curve.items()), strict=True), label=f"discorl, seed {seed}")
    style: dict[str, Any] = {"color": "grey", "linestyle": "--", "alpha": 0.7}
    for i, curve in enumerate(reference.values()):
        label = "JAX reference" if i == 0 else None
        axis.plot(*zip(*sorted(curve.items()), strict=True), label=label, **style)
    axis.set(
        xlabel="training step", ylabel="catch rate", ylim=(0, 1.02), title="Catch 8x8, Disco103"
    )
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--jobs", type=int, default=1, help="seeds that run at the same time")
    parser.add_argument("--reference-seeds", type=int, nargs="*", default=[])
    parser.add_argument("--jax-python", type=Path, help="instead of the one in .bench/jax")
    parser.add_argument("--name", default=DEFAULT_NAME, help="suffix of the files written")
    parser.add_argument("options", nargs="*", help="options of discorl train, after --")
    args = parser.parse_args()
    use_rule()
    files = RESULTS / f"{STEM}{args.name}"
    _, known = _stored(files.with_suffix(".json"))
    if missing := [s for s in args.reference_seeds if s not in known]:
        python = jax_python(parser, args.jax_python)
        for seed in missing:
            keep({}, {seed: run_reference(seed, python)}, files, args.options)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:
        runs = {pool.submit(run, s, args.options, Path(folder) / str(s)): s for s in args.seeds}
        for done in as_completed(runs):
            keep({runs[done]: done.result()}, {}, files, args.options)
    print(keep({}, {}, files, args.options))


def keep(
    new_ours: dict[int, Curve], new_reference: dict[int, Curve], files: Path, options: list[str]
) -> str:
    """Add curves to those that are stored, and make the table and the plot anew.

    After each run, so that a queue may be stopped, and another one run beside it.
    """
    ours, reference = _stored(files.with_suffix(".json"))
    ours = dict(sorted((ours | new_ours).items()))
    reference = dict(sorted((reference | new_reference).items()))
    curves = json.dumps({"ours": ours, "reference": reference})
    write_atomically(files.with_suffix(".json"), f"{curves}\n".encode())
    text = table(ours, reference, command(ours, reference, files, options))
    files.with_suffix(".md").write_text(text)
    plot(ours, reference, files.with_suffix(".png"))
    return text


def command(
    ours: dict[int, Curve], reference: dict[int, Curve], files: Path, options: list[str]
) -> str:
    """What makes all curves that are stored, in one go."""
    words = ["python -m benchmarks.catch_curves", "--seeds", *map(str, ours)]
    if run_here := [str(seed) for seed in reference if seed not in KNOWN]:
        words += ["--reference-seeds", *run_here]
    if (name := files.name.removeprefix(STEM)) != DEFAULT_NAME:
        words += ["--name", name]
    return " ".join(words + (["--", *options] if options else []))


def _stored(file: Path) -> tuple[dict[int, Curve], dict[int, Curve]]:
    """Curves of ours and of the reference that are there already."""
    stored = json.loads(file.read_text()) if file.is_file() else {"ours": {}, "reference": {}}
    ours, reference = (curves_of(stored[name]) for name in ("ours", "reference"))
    known = {seed: dict(zip(SHOWN, values, strict=True)) for seed, values in KNOWN.items()}
    return ours, known | reference


def curves_of(stored: dict[str, dict[str, float]]) -> dict[int, Curve]:
    """Curves by seed, from JSON, where all names are strings."""
    return {
        int(seed): {int(step): rate for step, rate in curve.items()}
        for seed, curve in stored.items()
    }


if __name__ == "__main__":
    main()
