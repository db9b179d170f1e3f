"""Whether agents learn as well in bf16 as in float32: the same seeds in both.

    python -m benchmarks.precision_study run --out study     # a queue; stop it whenever you like
    python -m benchmarks.precision_study table --out study   # what there is so far

Catch with Disco103 has twelve seeds, CartPole and two games of MinAtar three. Runs that are
finished are skipped, those that were stopped are resumed, and both precisions take turns. It needs
a processor that gains by bf16.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.catch_curves import step_to
from benchmarks.preset_study import train_or_resume
from benchmarks.workers import use_rule

PRECISIONS = ("float32", "bf16")
CATCH, SEEDS = "catch", {"catch": 12, "cartpole": 3, "breakout": 3, "space-invaders": 3}
CATCH_STEPS = 1000
MANY_UPDATES = "--rollout-length 29 --batch-size 16 --updates-per-step 4 --replay-share 1"
OPTIONS = {
    "catch": f"catch --steps {CATCH_STEPS}",
    "cartpole": f"gym:CartPole-v1 --steps 647 --num-envs 16 {MANY_UPDATES} --net.zero-values "
    "--optimiser.learning-rate 3e-3 --optimiser.schedule cosine",
    "breakout": f"minatar:breakout --steps 650 --num-envs 8 {MANY_UPDATES} "
    "--optimiser.learning-rate 5e-3",
    "space-invaders": f"minatar:space_invaders --steps 300 --num-envs 8 {MANY_UPDATES} "
    "--optimiser.learning-rate 5e-3",
}
"""Of ``discorl train``; all others are the presets'. Catch has the reference's."""
NUM_DEALS = 20_000
"""How often results are dealt out at random, to see how far apart luck puts them."""


def arguments_of(task: str, seed: int, precision: str) -> list[str]:
    """Arguments of ``discorl train``."""
    given = ["--rule", "disco103", "--seed", str(seed), "--precision", precision]
    return [*OPTIONS[task].split(), *given, "--log-every", "10"]


def queue() -> Iterator[tuple[str, int, str]]:
    """Task, seed and precision of every run, in turns: what has run so far can be compared."""
    for seed in range(max(SEEDS.values())):
        for task, precision in itertools.product(SEEDS, PRECISIONS):
            if seed < SEEDS[task]:
                yield task, seed, precision


def folder_of(out: Path, task: str, seed: int, precision: str) -> Path:
    """Where a run is."""
    return out / f"{task}-{precision}-{seed}"


def measures(folder: Path, task: str) -> dict[str, float]:
    """What counts of a run that has ended; a rate that is never reached counts as the last step."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    if json.loads((folder / "config.json").read_text())["precision"] not in folder.name:
        raise SystemExit(f"error: {folder} is not at its precision: this processor has no bf16")
    if task == CATCH:
        curve = {row["step"]: row["success"] for row in rows if "success" in row}
        last = [x for step, x in curve.items() if step > CATCH_STEPS - 100]
        reached = step_to(curve, 0.95) or CATCH_STEPS
        return {"step to 95 %": reached, "rate over the last 100": float(np.mean(last))}
    returns = [row["return"] for row in rows if "return" in row]
    return {"return over the last tenth": float(np.mean(returns[-max(1, len(returns) // 10) :]))}


def chance(first: Sequence[float], second: Sequence[float]) -> float:
    """How often means would be at least as far apart if the results were dealt out at random."""
    every, num = np.concatenate([first, second]), len(first)
    observed = abs(np.mean(first) - np.mean(second)) - 1e-12  # less rounding
    rng = np.random.default_rng(0)
    dealt = (rng.permutation(every) for _ in range(NUM_DEALS))
    return float(np.mean([abs(x[:num].mean() - x[num:].mean()) >= observed for x in dealt]))


def table(out: Path) -> str:
    """Markdown: each measure at both precisions, over the seeds that ended in both."""
    lines = [
        "Mean and standard deviation over seeds; the chance that dealing the results out at random "
        "puts the two means as far apart.",
        "",
        "| task | measure | seeds | float32 | bf16 | chance |",
        "|---|---|---|---|---|---|",
    ]
    for task, num in SEEDS.items():
        ended = [
            [folder_of(out, task, seed, precision) for precision in PRECISIONS]
            for seed in range(num)
        ]
        ended = [pair for pair in ended if all((f / "curve.png").exists() for f in pair)]
        found = [[measures(folder, task) for folder in pair] for pair in ended]
        for name in found[0][0] if found else ():
            exact, rounded = ([pair[i][name] for pair in found] for i in (0, 1))
            cells = (f"{np.mean(x):.4g} ± {np.std(x):.2g}" for x in (exact, rounded))
            by_luck = f"{chance(exact, rounded):.2f}" if len(found) > 1 else ""
            lines.append(f"| {task} | {name} | {len(found)} | {' | '.join(cells)} | {by_luck} |")
    return "\n".join(lines)


def main() -> None:
    """Run, or show what there is."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.precision_study",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--out", type=Path, default=Path("runs/precision-study"), help="the runs")
    options = parser.parse_args()
    if options.what == "table":
        print(table(options.out))
        return
    use_rule()
    for task, seed, precision in queue():
        folder = folder_of(options.out, task, seed, precision)
        train_or_resume(folder, arguments_of(task, seed, precision))


if __name__ == "__main__":
    main()
