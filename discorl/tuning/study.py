"""The search itself: Optuna's study, kept in a file. The only user of Optuna."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from discorl.errors import DiscorlError
from discorl.training.callback import RunView
from discorl.tuning.space import Choice, Range, Space
from discorl.tuning.worker import PRUNED, Trial

try:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import TrialState
except ImportError as e:
    raise DiscorlError(f"tuning needs a package: pip install 'discorl[tune]' ({e})") from None

NAME = "discorl"
JOURNAL = "study.journal"
STARTUP = 5
"""Trials that run to their end before any is pruned."""
WARM_UP = 0.25
"""Share of the budget before which no trial is pruned."""

optuna.logging.set_verbosity(optuna.logging.WARNING)


def open_study(folder: Path, budget: int, seed: int) -> optuna.Study:
    """The study in a folder; a new one if there is none."""
    return optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(folder / JOURNAL))),
        study_name=NAME,
        direction="maximize",
        load_if_exists=True,
        sampler=_sampler(seed),
        pruner=_pruner(budget),
    )


def begin_draws(study: optuna.Study, seed: int, number: int) -> None:
    """What a trial draws depends on its number, and not on when the search was last continued."""
    study.sampler = _sampler(int(np.random.SeedSequence([seed, number]).generate_state(1)[0]))


def _sampler(seed: int) -> optuna.samplers.TPESampler:
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP)


def trial_of(study: optuna.Study, number: int) -> optuna.Trial:
    """A trial that is under way, by its number."""
    return optuna.Trial(study, study.get_trials(deepcopy=False)[number]._trial_id)


def unfinished(study: optuna.Study) -> list[int]:
    """Trials that nobody works on any more, if nobody else has the study open."""
    return [t.number for t in study.get_trials(deepcopy=False) if t.state == TrialState.RUNNING]


def suggest(trial: optuna.Trial, space: Space) -> dict[str, Any]:
    """Values for a trial; those that it has already stay."""
    values: dict[str, Any] = {}
    for name, of in space.items():
        if isinstance(of, Range):
            values[name] = trial.suggest_float(name, of.low, of.high, log=True)
        else:
            assert isinstance(of, Choice)
            values[name] = trial.suggest_categorical(name, of.values)
    return values


def reporter(where: Trial) -> Callable[[RunView], None]:
    """A callback that tells the study how a trial goes, and stops it if others do better."""
    study = optuna.load_study(
        study_name=where.study,
        storage=JournalStorage(JournalFileBackend(where.journal)),
        pruner=_pruner(where.budget),
    )
    trial = trial_of(study, where.number)
    # A trial that is resumed comes to the same steps again.
    known = set(study.get_trials(deepcopy=False)[where.number].intermediate_values)

    def look(run: RunView) -> None:
        if run.is_logged and "return" in run.metrics and run.env_steps not in known:
            trial.report(run.metrics["return"], run.env_steps)
            if trial.should_prune():
                run.stop(PRUNED)

    return look


def _pruner(budget: int) -> optuna.pruners.BasePruner:
    return optuna.pruners.MedianPruner(STARTUP, n_warmup_steps=int(WARM_UP * budget))
