"""Whether agents learn as well in bf16 as in float32: the same seeds in both.

    python -m benchmarks.precision_study run --out study     # a queue; stop it whenever you like
    python -m benchmarks.precision_study table --out study   # what there is so far
    python -m benchmarks.precision_study keep --out study    # the same, to benchmarks/results

Catch with Disco103 has twelve seeds, CartPole and two games of MinAtar three. Runs that are
finished are skipped, those that were stopped are resumed, and both precisions take turns: a seed of
Catch after the other, then the rest. It needs a processor that gains by bf16.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.catch_curves import last_hundred, step_to
from benchmarks.preset_study import has_ended, train_or_resume
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
LEVEL = 0.05
"""A chance below this one is not put down to luck."""
STUDENT = dict(
    zip(
        range(2, 23, 2),
        (4.303, 2.776, 2.447, 2.306, 2.228, 2.179, 2.145, 2.120, 2.101, 2.086, 2.074),
        strict=True,
    )
)
"""By degrees of freedom: how many standard errors a 95 % interval has to either side."""
RESULTS = Path(__file__).parent / "results" / "precision-study"


def arguments_of(task: str, seed: int, precision: str) -> list[str]:
    """Arguments of ``discorl train``."""
    given = ["--rule", "disco103", "--seed", str(seed), "--precision", precision]
    return [*OPTIONS[task].split(), *given, "--log-every", "10"]


def queue() -> Iterator[tuple[str, int, str]]:
    """Task, seed and precision of every run: Catch first, then the others seed by seed.

    Both precisions of a seed follow each other, so that what has run so far can be compared.
    """
    others = sorted((seed, task) for task, n in SEEDS.items() if task != CATCH for seed in range(n))
    for seed, task in [*((seed, CATCH) for seed in range(SEEDS[CATCH])), *others]:
        for precision in PRECISIONS:
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
        reached = step_to(curve, 0.95) or CATCH_STEPS
        return {"step to 95 %": reached, "rate over the last 100": last_hundred(curve)}
    returns = [row["return"] for row in rows if "return" in row]
    return {"return over the last tenth": float(np.mean(returns[-max(1, len(returns) // 10) :]))}


def chance(first: Sequence[float], second: Sequence[float]) -> float:
    """How often means would be at least as far apart if the results were dealt out at random."""
    every, num = np.concatenate([first, second]), len(first)
    observed = abs(np.mean(first) - np.mean(second)) - 1e-12  # less rounding
    rng = np.random.default_rng(0)
    dealt = (rng.permutation(every) for _ in range(NUM_DEALS))
    return float(np.mean([abs(x[:num].mean() - x[num:].mean()) >= observed for x in dealt]))


def interval(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Of Student's t: the 95 % interval of the second mean less the first."""
    num = len(first) + len(second)
    squares = sum(np.var(x) * len(x) for x in (first, second))
    error = np.sqrt(squares / (num - 2) * (1 / len(first) + 1 / len(second)))
    difference, half = np.mean(second) - np.mean(first), STUDENT[num - 2] * error
    return float(difference - half), float(difference + half)


def verdict(task: str, by_luck: float, low: float, high: float) -> str:
    """In words. Three seeds each can never be dealt out so that the chance is below a tenth."""
    if task == CATCH:
        return "distinguishable" if by_luck < LEVEL else "not distinguishable"
    return "within the interval" if low <= 0 <= high else "outside of the interval"


def found_in(out: Path) -> dict[str, list[dict[str, dict[str, float]]]]:
    """By task, for each seed that ended at both precisions, by precision: what was measured."""
    found: dict[str, list[dict[str, dict[str, float]]]] = {}
    for task, num in SEEDS.items():
        pairs = [{p: folder_of(out, task, seed, p) for p in PRECISIONS} for seed in range(num)]
        ended = [pair for pair in pairs if all(has_ended(f) for f in pair.values())]
        found[task] = [{p: measures(f, task) for p, f in pair.items()} for pair in ended]
    return found


def table(found: dict[str, list[dict[str, dict[str, float]]]]) -> str:
    """Markdown: each measure at both precisions, over the seeds that ended in both."""
    lines = [
        "Mean and standard deviation over seeds; bf16's mean less float32's with its 95 % interval "
        "(Student's t, one variance); the chance that dealing the results out at random puts the "
        f"two means as far apart ({NUM_DEALS} deals, two-sided). On Catch the two are called "
        f"distinguishable if that chance is below {LEVEL}; three seeds cannot say so, and there "
        "the question is whether the interval has 0 in it.",
        "",
        "| task | measure | seeds | float32 | bf16 | difference | chance | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for task, pairs in found.items():
        for name in pairs[0][PRECISIONS[0]] if pairs else ():
            exact, rounded = ([pair[p][name] for pair in pairs] for p in PRECISIONS)
            if len(pairs) > 1:
                cells = [f"{np.mean(x):.4g} ± {np.std(x, ddof=1):.2g}" for x in (exact, rounded)]
                low, high = interval(exact, rounded)
                by_luck = chance(exact, rounded)
                cells.append(f"{np.mean(rounded) - np.mean(exact):.3g} ({low:.3g} to {high:.3g})")
                cells += [f"{by_luck:.2f}", verdict(task, by_luck, low, high)]
            else:
                cells = [f"{exact[0]:.4g}", f"{rounded[0]:.4g}", "", "", ""]
            lines.append(f"| {task} | {name} | {len(pairs)} | {' | '.join(cells)} |")
    left = {task: SEEDS[task] - len(pairs) for task, pairs in found.items()}
    if missing := ", ".join(f"{n} of {task}" for task, n in left.items() if n):
        lines += ["", f"Seeds that have not ended: {missing}."]
    return "\n".join(lines)


def keep(out: Path) -> str:
    """Write the table, and the figures of every run, beside the other results."""
    found = found_in(out)
    text = table(found)
    command = "Made by `python -m benchmarks.precision_study run`, then `keep`."
    RESULTS.with_suffix(".md").write_text(f"{command}\n\n{text}\n")
    RESULTS.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    return text


def main() -> None:
    """Run, or show what there is."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.precision_study",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("run", "table", "keep"))
    parser.add_argument("--out", type=Path, default=Path("runs/precision-study"), help="the runs")
    options = parser.parse_args()
    if options.what != "run":
        print(keep(options.out) if options.what == "keep" else table(found_in(options.out)))
        return
    use_rule()
    for task, seed, precision in queue():
        folder = folder_of(options.out, task, seed, precision)
        train_or_resume(folder, arguments_of(task, seed, precision))


if __name__ == "__main__":
    main()
