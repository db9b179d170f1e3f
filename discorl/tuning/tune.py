"""Searching for settings: trials suggested by Optuna, each a run, the bad ones stopped early."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from discorl.bounds import MAX_AT_ONCE, check_between
from discorl.comparison.curves import Curve, final_score
from discorl.comparison.records import read_run
from discorl.errors import DiscorlError
from discorl.printable import printable
from discorl.runs.curves import plot_trials
from discorl.runs.files import held, write_json
from discorl.runs.terminal import cell, say
from discorl.training.config import TrainConfig
from discorl.tuning.command_line import command_line
from discorl.tuning.pool import last_words, run_all
from discorl.tuning.space import Space, space_for, value_of, with_values
from discorl.tuning.worker import WAS_PRUNED, Trial, write_job

SHOWN = 10
"""Trials in the table."""


@dataclass(frozen=True)
class TrialResult:
    """A trial that has ended."""

    number: int
    state: str
    """complete, pruned or fail."""
    score: float | None
    """Its mean return over the last tenth of the budget; of one that was pruned, the last."""
    values: dict[str, Any]


@dataclass(frozen=True)
class TuneResult:
    """A search, finished or interrupted."""

    folder: Path
    trials: list[TrialResult]
    best: TrialResult | None
    config: TrainConfig | None
    """The best settings, to train with any seed."""
    interrupted: bool

    @property
    def command(self) -> str:
        """The command that trains with them."""
        return command_line(self.config) if self.config else ""

    def __repr__(self) -> str:
        best = f"; best: {self.best.score:.4g} with {self.command}" if self.best else ""
        return f"<Search in {self.folder}: {len(self.trials)} trials{best}>"


def tune(
    config: TrainConfig,
    out: Path | str,
    trials: int = 30,
    jobs: int = 1,
    console: Console | None = None,
) -> TuneResult:
    """Search for settings that are better than those of ``config``, which are the first trial.

    Each trial is a run below ``out``. The search is kept there, too: the same call continues it,
    and a trial that was killed goes on from its checkpoint.
    """
    check_between(1, MAX_AT_ONCE, "trials", trials)
    check_between(1, MAX_AT_ONCE, "jobs", jobs)
    console, out = console or Console(), Path(out)
    config = replace(config, out=None, progress="none")
    space = space_for(config)
    from discorl.tuning.study import open_study  # late: Optuna is an extra, and it loads slowly

    out.mkdir(parents=True, exist_ok=True)
    with held(out):
        study = open_study(out, config.steps * config.env_steps_per_step, config.seed)
        _check_same(study, config, space, out)
        search = _Search(study, config, space, out, trials, console)
        is_whole = run_all(search.next_folder, search.ended, jobs)
        result = _result(study, config, out, interrupted=not is_whole)
        write_json(out / "trials.json", [asdict(t) for t in result.trials])
        plot_trials(out / "tuning.png", [(t.number, t.score, t.state) for t in result.trials])
    return result


class _Search:
    """Gives out trials, and takes their results."""

    def __init__(
        self,
        study: Any,
        config: TrainConfig,
        space: Space,
        out: Path,
        trials: int,
        console: Console,
    ) -> None:
        from discorl.tuning import study as studies

        self._studies, self._study, self._config, self._space = studies, study, config, space
        self._out, self._trials, self._console = out, trials, console
        self._begun_before = studies.unfinished(study)
        self._left = trials - len(study.get_trials(deepcopy=False)) + _queued(study)

    def next_folder(self) -> Path | None:
        """A trial that was begun before, or a new one."""
        if self._begun_before:
            trial = self._studies.trial_of(self._study, self._begun_before.pop(0))
        elif self._left > 0:
            self._left -= 1
            number = len(self._study.get_trials(deepcopy=False)) - _queued(self._study)
            self._studies.begin_draws(self._study, self._config.seed, number)
            trial = self._study.ask()
        else:
            return None
        values = self._studies.suggest(trial, self._space)
        folder = self._out / f"trial-{trial.number}"
        config = with_values(self._config, values)
        budget = config.steps * config.env_steps_per_step
        journal = str(self._out / self._studies.JOURNAL)
        where = Trial(journal, self._studies.NAME, trial.number, budget)
        write_job(folder, json.loads(json.dumps(asdict(config), default=str)), where)
        return folder

    def ended(self, folder: Path, code: int) -> None:
        """Tell the study."""
        number = int(folder.name.removeprefix("trial-"))
        if code == 0:
            score = _score(folder)
            self._study.tell(number, score)
            how = f"{score:.4g}"
        elif code == WAS_PRUNED:
            self._study.tell(number, state=self._studies.TrialState.PRUNED)
            how = "stopped early: others do better"
        else:
            self._study.tell(number, state=self._studies.TrialState.FAIL)
            how = f"failed: {last_words(folder)}"
        say(self._console, f"[{number + 1}/{self._trials}] {folder.name}: {how}")


def _queued(study: Any) -> int:
    """Trials that are decided but not begun: the first one, at the very beginning."""
    return sum(t.state.name == "WAITING" for t in study.get_trials(deepcopy=False))


def _check_same(study: Any, config: TrainConfig, space: Space, out: Path) -> None:
    """Raise if the folder holds a search from other settings; remember those of a new one."""
    plain = json.dumps(asdict(config), default=str, sort_keys=True)
    before = study.user_attrs.get("config")
    if before is None:
        study.set_user_attr("config", plain)
        study.enqueue_trial({name: value_of(config, name) for name in space})
    elif before != plain:
        raise DiscorlError(
            f"{out} holds a search that began with other settings: give the same options to "
            "continue it, or choose another --out"
        )


def _score(folder: Path) -> float:
    """As in a comparison: the mean return over the last tenth of the budget."""
    env_steps, _, returns = read_run(folder).logged.having("return")
    if not len(returns):
        raise DiscorlError(f"no episode ended in {folder}: raise --steps or --env-steps")
    return final_score(Curve(env_steps, returns), float(env_steps[-1]))


def _result(study: Any, config: TrainConfig, out: Path, interrupted: bool) -> TuneResult:
    ended = [
        TrialResult(t.number, t.state.name.lower(), t.value, dict(t.params))
        for t in study.get_trials(deepcopy=False)
        if t.state.is_finished()
    ]
    complete = [t for t in ended if t.state == "complete" and t.score is not None]
    best = max(complete, key=lambda t: (t.score, -t.number), default=None)
    best_config = with_values(config, best.values) if best else None
    return TuneResult(out, ended, best, best_config, interrupted)


def print_result(result: TuneResult, console: Console) -> None:
    """A table of the best trials, and what to do next."""
    names = list(result.trials[0].values) if result.trials else []
    table = Table(title="Trials, the best first", title_justify="left", box=SIMPLE_HEAD)
    for name in ("trial", "score", *(name.rpartition(".")[2] for name in names)):
        table.add_column(name.replace("_", " "), justify="right")
    complete = [t for t in result.trials if t.state == "complete"]
    for t in sorted(complete, key=lambda t: -(t.score or 0))[:SHOWN]:
        values = (f"{v:.3g}" if isinstance(v, float) else str(v) for v in t.values.values())
        table.add_row(str(t.number), f"{t.score:.4g}", *map(cell, values))
    console.print(table)
    count = {state: sum(t.state == state for t in result.trials) for state in ("pruned", "fail")}
    say(
        console,
        f"{len(complete)} trials ran to their end, {count['pruned']} were stopped early and "
        f"{count['fail']} failed. Trial 0 has the settings that the search began with.",
        f"Picture: {result.folder / 'tuning.png'}",
    )
    if result.config:
        say(console, "The best settings:")
        print(f"  {printable(result.command)}", file=console.file)  # one line, to be copied
