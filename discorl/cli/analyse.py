"""``discorl analyse``."""

from __future__ import annotations

from pathlib import Path

import tyro


def analyse_rule(
    subject: tyro.conf.Positional[str],
    task: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    only: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    out: Path | None = None,
    seeds: int = 3,
    steps: int | None = None,
) -> None:
    """See what a rule does: figures, numbers and an HTML page; docs/analysis.md explains them.

    Args:
        subject: Name of a rule, path of a rule file, or folder of a run with checkpoints.
        task: Train agents on this task; repeat it for several. The default is catch.
        only: Do only this analysis; repeat it for several: bootstrapping, response,
            reliance, confidence, attention, information, lifetime.
        out: Folder for the results, by default analysis/NAME. What it holds already is kept, so
            the same command continues an analysis that was stopped.
        seeds: How many agents to train on each task.
        steps: Training steps of each agent; by default those of 'discorl train', at most 400.
    """
    from discorl.analysis.analyse import analyse

    if analyse(subject, task, only, out, seeds, steps).interrupted:
        raise KeyboardInterrupt
