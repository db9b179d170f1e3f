"""The table: every task, all of them together, and who beats whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.rule_trials.contestants import ENV_STEPS, UNTRAINED, Contestant
from benchmarks.rule_trials.results import SEEDS, read
from discorl.comparison.statistics import (
    Estimate,
    aggregate,
    interquartile_mean,
    probability_of_improvement,
)

SAMPLES = 5000
Array = NDArray[np.float64]


def report(first: Contestant, others: Sequence[Contestant], tasks: Sequence[str]) -> str:
    """Markdown about ``first`` against the others, on the tasks that have results of all."""
    entered = [first, *others]
    found = {(c.name, t): read(c.name, t) for c in entered for t in tasks}
    untrained = {t: read(UNTRAINED, t) for t in tasks}
    complete = [t for t in tasks if untrained[t] and all(found[c.name, t] for c in entered)]
    scores = {c.name: [_scores(found[c.name, t]) for t in complete] for c in entered}
    lines = [
        f"# {first.title} on held-out tasks",
        "",
        f"{len(SEEDS)} seeds each, {ENV_STEPS:,} environment steps; the score of a run is the mean "
        "return over the last fifth of the steps. Made by `python -m benchmarks.rule_trials`. "
        "Interquartile means, the best in bold:",
        "",
        _row("task", *(c.title for c in entered)),
        _row(*["---"] * (1 + len(entered))),
        *(_task_row(t, [found[c.name, t] for c in entered]) for t in tasks),
    ]
    if not complete:
        return "\n".join(lines) + "\n"
    levels = [_scores(untrained[t]).mean() for t in complete]
    normalised = _normalised(scores, levels)
    rng = np.random.default_rng(0)
    lines += [
        "",
        f"Together, on the {len(complete)} tasks that all have run, with 95 % bootstrap intervals. "
        "Scores are normalised for each task: 0 is an agent that does not learn, 1 the best "
        f"interquartile mean of all. The last columns are about {first.title}: on how many tasks "
        "its interquartile mean is higher, the probability that one of its runs is better, and "
        "what its normalised score is ahead by.",
        "",
        _row("", "normalised score", "wins", "probability", "ahead by"),
        _row(*["---"] * 5),
    ]
    for c in entered:
        cells = [_shown(aggregate(normalised[c.name], SAMPLES, rng))]
        if c is first:
            cells += ["", "", ""]
        else:
            ours, theirs = scores[first.name], scores[c.name]
            better = probability_of_improvement(ours, theirs, SAMPLES, rng)
            ahead = difference(normalised[first.name], normalised[c.name], rng)
            cells += [f"{_wins(ours, theirs)} of {len(complete)}", _shown(better), _shown(ahead)]
        lines.append(_row(c.title, *cells))
    return "\n".join(lines) + "\n"


def difference(first: Sequence[Array], second: Sequence[Array], rng: Any) -> Estimate:
    """Of two interquartile means over runs x tasks, with a stratified bootstrap interval."""

    def resampled(tasks: Sequence[Array]) -> Array:
        drawn = [x[rng.integers(len(x), size=(SAMPLES, len(x)))] for x in tasks]
        return interquartile_mean(np.concatenate(drawn, axis=1))

    value = interquartile_mean(np.concatenate(first)) - interquartile_mean(np.concatenate(second))
    low, high = np.quantile(resampled(first) - resampled(second), [0.025, 0.975])
    return Estimate(float(value), float(low), float(high))


def _normalised(scores: dict[str, list[Array]], levels: list[float]) -> dict[str, list[Array]]:
    """0 is ``levels``, 1 the best of each task; where nobody is above its level, all are 0."""
    best = [max(interquartile_mean(x) for x in of_one) for of_one in zip(*scores.values())]
    spans = [b - level for b, level in zip(best, levels, strict=True)]
    return {
        name: [
            (x - level) / span if span > 0 else np.zeros_like(x)
            for x, level, span in zip(tasks, levels, spans, strict=True)
        ]
        for name, tasks in scores.items()
    }


def _wins(ours: list[Array], theirs: list[Array]) -> int:
    pairs = zip(ours, theirs, strict=True)
    return sum(bool(interquartile_mean(x) > interquartile_mean(y)) for x, y in pairs)


def _scores(result: dict[str, Any] | None) -> Array:
    assert result is not None
    return np.array(result["scores"])


def _task_row(task: str, results: list[dict[str, Any] | None]) -> str:
    values = [float(interquartile_mean(_scores(r))) if r else -np.inf for r in results]
    cells = [f"{v:.3g}" if r else "" for v, r in zip(values, results, strict=True)]
    top = int(np.argmax(values))
    cells = [f"**{x}**" if i == top and x else x for i, x in enumerate(cells)]
    return _row(task, *cells)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _shown(x: Estimate) -> str:
    return f"{x.value:.2f} ({x.low:.2f} to {x.high:.2f})"
