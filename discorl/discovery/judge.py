"""Judging the rule while it is found: fresh agents train with it on the held-out tasks.

Their scores are measured against an actor-critic's, and the rule that did best is kept.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from discorl import tree
from discorl.discovery.config import DiscoverConfig, groups_of
from discorl.discovery.stats import metric_names
from discorl.discovery.trials import baseline_settings, make_trial, rule_settings, task_of
from discorl.envs.base import close_env
from discorl.meta.crew import Crew
from discorl.meta.population_acting import Episodes
from discorl.meta.trial import Trial, act_untrained, final_score, run_trial
from discorl.rules.disco import DiscoRule
from discorl.runs import distributed
from discorl.runs.distributed import Ranks
from discorl.types import Params

T = TypeVar("T")

LEAST_GAIN = 0.5
"""In standard deviations of untrained agents' returns: the actor-critic counts as having gained at
least this much, so that a task on which it learns nothing does not outweigh all the others."""
SMALLEST_GAIN = 1e-3
"""The same for tasks on which all returns are equal."""
CURRENT, AVERAGE = "validation", "validation_average"


@dataclass(frozen=True)
class Levels:
    """What scores are measured by, for each held-out task; NaN where no episode ended. [tasks]"""

    random: Tensor
    """Mean return of agents that have learnt nothing."""
    spread: Tensor
    """Standard deviation of their returns."""
    baseline: Tensor
    """The score of an actor-critic that trained as ``discorl train`` would train it."""
    are_known: bool = False

    @staticmethod
    def unknown(num_tasks: int) -> Levels:
        """Before the actor-critic has trained."""
        nothing = torch.full((num_tasks,), torch.nan, dtype=torch.float64)
        return Levels(nothing, nothing, nothing)

    def normalised(self, scores: Sequence[float]) -> float:
        """The mean over tasks, where 0 is untrained and 1 the actor-critic; NaN if one is missing.

        Tasks without levels do not count.
        """
        gain = torch.maximum(self.baseline - self.random, LEAST_GAIN * self.spread)
        gain = gain.clamp(min=SMALLEST_GAIN)
        gained = (torch.tensor(scores, dtype=torch.float64) - self.random) / gain
        return float(gained[~gain.isnan()].mean())


@dataclass(frozen=True)
class Best:
    """The rule with the best score so far."""

    params: Params
    step: int = 0
    """The meta-step that it is from; 0 before the first."""
    score: float = 0.0
    is_average: bool = False


@dataclass(frozen=True)
class Judged:
    """All that changes as rules are judged."""

    average: Params
    """The moving average of the rule's weights."""
    levels: Levels
    best: Best

    def with_step(self, params: Params, step: int, num_averaged: int) -> Judged:
        """After a step of the rule: the average moves, by a plain mean at the start."""
        weight = 1 / min(step, num_averaged)
        return replace(self, average=tree.lerp(self.average, params, weight))


class Judge:
    """The trials of this process, and what they say about a rule."""

    def __init__(
        self,
        config: DiscoverConfig,
        rule: DiscoRule,
        ranks: Ranks,
        envs: Mapping[str, Any],
        resumed: Path | None = None,
    ) -> None:
        """``envs`` are the user's own, by task; ``resumed`` is the folder of a resumed run."""
        self._config, self._ranks = config, ranks
        self._envs, self._resumed = envs, resumed
        self._entries = groups_of(config.held_out)
        self._names = metric_names(self._entries)
        own = ranks.deal(len(self._entries))[ranks.rank]
        self._trials = {i: self._trial(i, rule) for i in own}
        self._crew = Crew()

    def begin(self, params: Params) -> Judged:
        """Before the first step."""
        return Judged(params, Levels.unknown(len(self._entries)), Best(params))

    def judge(self, judged: Judged, params: Params, step: int) -> tuple[Judged, dict[str, float]]:
        """Train with the rule, and with its average; the metrics, and the best so far.

        The first call also trains the actor-critic.
        """
        if not judged.levels.are_known:
            judged = replace(judged, levels=self._find_levels())
        candidates = {CURRENT: params}
        if self._config.eval_average > 1:
            candidates[AVERAGE] = judged.average
        row: dict[str, float] = {}
        for name, weights in candidates.items():
            scores = self._of_all_tasks(lambda i, w=weights: self._score(i, self._trials[i], w))
            if name == CURRENT:
                tasks = zip(self._names, scores, strict=True)
                row |= {f"held_out/{task}": x for task, x in tasks}
            score, best = judged.levels.normalised(scores), judged.best
            if math.isnan(score):
                continue
            row[name] = score
            if not best.step or score > best.score:
                judged = replace(judged, best=Best(weights, step, score, name == AVERAGE))
        return judged, row

    def close(self) -> None:
        """End the environments."""
        for trial in self._trials.values():
            close_env(trial.group.env)

    def _trial(self, i: int, rule: DiscoRule | None) -> Trial:
        entry = self._entries[i]
        settings = baseline_settings(entry) if rule is None else rule_settings(entry, rule)
        env = self._envs.get(task_of(entry))
        return make_trial(self._config, settings, rule, self._ranks.device, env, self._resumed)

    def _generator(self, i: int) -> torch.Generator:
        """Of a task: the same agents and the same draws of the task in all of its trials."""
        seed = self._config.seed * 1_000_003 + 1_000 + i
        return torch.Generator(self._ranks.device).manual_seed(seed)

    def _score(self, i: int, trial: Trial, params: Params) -> float:
        return final_score(run_trial(trial, params, self._config.eval_updates, self._generator(i)))

    def _levels(self, i: int, trial: Trial) -> list[float]:
        """Of a task: what untrained agents get there, and what the actor-critic does."""
        acted = act_untrained(trial, self._config.eval_updates, self._generator(i))
        score = self._score(i, trial, {})
        close_env(trial.group.env)
        return [*mean_and_spread(acted), score]

    def _of_all_tasks(self, run: Callable[[int], T]) -> list[T]:
        """What ``run`` gives for each task, in every process.

        Several processes meet after every trial: one that waits for too long gives up.
        """
        found, own = {}, [*self._trials]
        at_home = [i for i, trial in self._trials.items() if not trial.group.may_move]
        at_once = len(own) if self._ranks.size == 1 else 1
        for turn in range(0, self._ranks.share(len(self._names)), at_once):
            keys = own[turn : turn + at_once]
            done = self._crew.run(run, keys, [i for i in keys if i in at_home])
            found |= distributed.merge({str(i): x for i, x in zip(keys, done, strict=True)})
        return [found[str(i)] for i in range(len(self._names))]

    def _find_levels(self) -> Levels:
        """Train the actor-critic on each task."""
        # Made here, in one thread: a new network draws from torch's own random numbers, which
        # another thread may have seeded for the weights of its agents.
        trials = {i: self._trial(i, None) for i in self._trials}
        levels = self._of_all_tasks(lambda i: self._levels(i, trials[i]))
        known = zip(self._names, levels, strict=True)
        unknown = [task for task, of_task in known if any(map(math.isnan, of_task))]
        if unknown and self._ranks.is_first:
            warnings.warn(
                f"no episode of {', '.join(unknown)} ended in {self._config.eval_updates} updates, "
                "so it does not count in the validation score: raise --eval-updates",
                stacklevel=2,
            )
        columns = (torch.tensor(x, dtype=torch.float64) for x in zip(*levels, strict=True))
        return Levels(*columns, are_known=True)


def mean_and_spread(episodes: Episodes) -> tuple[float, float]:
    """Of the returns of all agents; NaN if no episode ended."""
    returns, count, squares = (
        float(x.double().sum()) for x in (episodes.returns, episodes.count, episodes.squares)
    )
    if not count:
        return math.nan, math.nan
    mean = returns / count
    return mean, math.sqrt(max(squares / count - mean**2, 0.0))
