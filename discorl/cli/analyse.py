"""``discorl analyse``."""

from __future__ import annotations

from pathlib import Path

import tyro

from discorl.cli.first_use import ask_before_download
from discorl.errors import DiscorlError


def analyse_rule(
    subject: tyro.conf.Positional[str] = "",
    task: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    only: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    out: Path | None = None,
    seeds: int = 3,
    steps: int | None = None,
    ablations: bool = False,
) -> None:
    """See what a rule does: figures, numbers and an HTML page; docs/analysis.md explains them.

    Args:
        subject: Name of a rule, path of a rule file, or folder of a run with checkpoints.
        task: Train agents on this task; repeat it for several. The default is catch.
        only: Do only this analysis; repeat it for several: learning, bootstrapping,
            response, reliance, retraining, formula, confidence, attention, information, lifetime.
        out: Folder for the results, by default analysis/NAME. What it holds already is kept, so
            the same command continues an analysis that was stopped.
        seeds: How many agents to train on each task.
        steps: Training steps of each agent; by default those of 'discorl train', but at most 400,
            and at most 1000 updates. With --ablations, meta-steps of each discovery, 200.
        ablations: Instead of a rule, see what the parts of rules are worth: discover rules that
            lack one of them, with --seeds of each, and compare.
    """
    from discorl.analysis.ablations import analyse_ablations
    from discorl.analysis.analyse import analyse
    from discorl.analysis.workers import num_workers

    if ablations:
        if subject or task or only:
            raise DiscorlError("--ablations discovers its own rules: leave out rule, task and only")
        if not analyse_ablations(out, seeds, steps, workers=num_workers()):
            raise KeyboardInterrupt
        return
    if not subject:
        raise DiscorlError("name a rule or the folder of a run, as in discorl analyse disco-mini")
    ask_before_download(subject)
    if analyse(subject, task, only, out, seeds, steps, workers=num_workers()).interrupted:
        raise KeyboardInterrupt
