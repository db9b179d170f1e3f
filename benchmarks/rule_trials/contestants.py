"""Who takes part: rules at one setting everywhere, and baselines that may be tuned for a task.

All of them see as many environment steps, and our own have the same network and environments on a
task: those that ``discorl train`` gives small rules. Disco103 makes as many updates as cmpo does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.learning.tasks import BOARD_PPO, TASKS, TIME_LIMITS, ZOO
from benchmarks.peers.run_ppo import run_ppo
from discorl.rules.actor_critic import ActorCriticSettings
from discorl.rules.built_in import ACTOR_CRITIC, CMPO_RULE
from discorl.rules.store import DISCO103, embedded_rules
from discorl.training import presets
from discorl.training.config import TrainConfig
from discorl.training.train import train

ENV_STEPS = 64_000
SHIPPED = next(embedded_rules())[0]
Score = Callable[[int], float]
"""From a seed to the mean return of the episodes in the last fifth of the steps."""


@dataclass(frozen=True)
class Contestant:
    """A way to learn any task. More than one setting means that it is tuned for each task."""

    name: str
    title: str
    settings: Callable[[str], dict[str, Score]]
    """Of a task, by what tells them apart."""


def contestants() -> dict[str, Contestant]:
    """All that are known by a name."""
    return {
        one.name: one
        for one in (
            of_rule(SHIPPED),
            Contestant(f"{SHIPPED}-rates", f"{SHIPPED}, best of three rates", three_rates),
            of_rule(CMPO_RULE),
            Contestant(ESTIMATED, "cmpo, --estimate-values", with_estimated_values),
            of_rule(DISCO103),
            Contestant(ACTOR_CRITIC, "actor-critic, one setting", one_actor_critic),
            Contestant("actor-critic-tuned", "actor-critic, tuned for the task", actor_critics),
            Contestant("ppo", "PPO (Stable-Baselines3)", ppo),
            Contestant(UNTRAINED, UNTRAINED, untrained),
        )
    }


UNTRAINED = "untrained"
ESTIMATED = "cmpo-estimated"
"""Takes part where it is named."""


def with_estimated_values(task: str) -> dict[str, Score]:
    config = replace(setup(task, CMPO_RULE), estimate_values=True)
    return {f"rate {config.optimiser.learning_rate:g}": training(config)}


def of_rule(rule: str) -> Contestant:
    """A rule, by its name or its file, at its own setting."""

    def settings(task: str) -> dict[str, Score]:
        own = presets.for_rule(presets.for_task(task), rule)
        config = replace(setup(task, rule), returns=own.returns, optimiser=own.optimiser)
        return {f"rate {own.optimiser.learning_rate:g}": training(config)}

    return Contestant(Path(rule).stem, Path(rule).stem, settings)


def setup(task: str, rule: str) -> TrainConfig:
    """What ``discorl train`` gives the rule, or else cmpo, for ``ENV_STEPS``."""
    small = CMPO_RULE if rule in (ACTOR_CRITIC, DISCO103) else rule
    config = presets.for_rule(presets.for_task(task), small)
    steps = round(ENV_STEPS / (config.num_envs * config.rollout_length))
    config = replace(config, env=replace(config.env, kwargs=time_limit(task)))
    return replace(config, rule=rule, steps=steps, mask_episode_starts=False, progress="none")


def time_limit(task: str) -> dict[str, int]:
    """Keyword arguments for a task whose episodes might never end."""
    return {"max_episode_steps": TIME_LIMITS[task]} if task in TIME_LIMITS else {}


def with_rate(config: TrainConfig, rate: float) -> TrainConfig:
    return replace(config, optimiser=replace(config.optimiser, learning_rate=rate))


def training(config: TrainConfig) -> Score:
    def score(seed: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            out, every = Path(folder) / "run", config.steps // 5
            result = train(replace(config, seed=seed, log_every=every, out=out))
            if result.interrupted:  # Ctrl-C and SIGTERM end a run cleanly; half has no score
                raise SystemExit(130)
            return float(result.metrics[-1]["return"])

    return score


def three_rates(task: str) -> dict[str, Score]:
    config = setup(task, SHIPPED)
    rates = [factor * config.optimiser.learning_rate for factor in (1 / 3, 1, 3)]
    return {f"rate {rate:.2g}": training(with_rate(config, rate)) for rate in rates}


WAYS: dict[str, dict[str, Any]] = {
    "fresh": {"updates_per_step": 1, "replay_share": 0.0, "replay_capacity": 16},
    "replay": {"updates_per_step": 4, "replay_share": 0.5, "replay_capacity": 128},
}
"""How the actor-critic may learn: as most do, or as the rule's preset does."""
LEARNING_RATES = (1e-3, 3e-3, 1e-2, 3e-2)
ENTROPY_COSTS = (0.003, 0.03, 0.1)
ONE_SETTING = ("replay", 3e-3, 0.03)
"""Chosen by ``python -m benchmarks.rule_trials --choose-setting``."""


def one_actor_critic(task: str) -> dict[str, Score]:
    return actor_critics(task, [ONE_SETTING])


def actor_critics(
    task: str, settings: Sequence[tuple[str, float, float]] | None = None
) -> dict[str, Score]:
    if settings is None:
        settings = [(w, r, c) for w in WAYS for r in LEARNING_RATES for c in ENTROPY_COSTS]
    return {f"{w}, {r:g}, {c:g}": training(actor_critic(task, w, r, c)) for w, r, c in settings}


def actor_critic(task: str, way: str, rate: float, cost: float) -> TrainConfig:
    """The actor-critic learns as it likes, from as many bins as the rule."""
    own = ActorCriticSettings(entropy_cost=cost, num_bins=81, max_abs_value=20.0)
    config = replace(setup(task, ACTOR_CRITIC), **WAYS[way], actor_critic=own)
    return with_rate(config, rate)


def untrained(task: str) -> dict[str, Score]:
    """An agent that does not learn: what scores are measured from."""
    return {"": training(with_rate(actor_critic(task, "fresh", 1.0, 0.0), 1e-12))}


DEFAULT_PPO = {"n_envs": 16, "n_steps": 128}
"""The defaults of Stable-Baselines3, whose 2,048 steps of one environment become 128 of 16."""


def ppo(task: str) -> dict[str, Score]:
    """The settings that rl-baselines3-zoo has for a task or its suite, else the defaults."""
    published = {x.task: x.ppo for x in TASKS.values() if x.ppo_from.startswith(ZOO)}
    if task.startswith("minatar:"):
        published[task] = BOARD_PPO
    settings = dict(published.get(task, DEFAULT_PPO))
    if limit := time_limit(task):
        settings["env_options"] = limit

    def score(seed: int) -> float:
        last = ENV_STEPS // 5
        job = {"task": task, "env_steps": ENV_STEPS, "seed": seed, "settings": settings}
        curve = run_ppo(job | {"every": ENV_STEPS // 20, "window": last})["curve"]
        return float(curve[-1][1])

    return {"zoo" if task in published else "defaults": score}
