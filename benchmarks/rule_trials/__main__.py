"""A discovered rule against the actor-critic, on tasks that the rule has never seen.

    python -m benchmarks.rule_trials                        # the rule that ships with the package
    python -m benchmarks.rule_trials gym:CartPole-v1 umbrella:10 --rule PATH
    python -m benchmarks.rule_trials --rule-again           # new weights, the same baseline

Both train fresh agents by ``discorl train``, with the same network and as many environment steps.
The actor-critic may learn from fresh trajectories alone or from replay too, whichever suits it, and
has its learning rate and entropy cost tuned for every task, on seeds of their own; the rule has the
settings of its preset everywhere. The score is the mean return of the episodes in the last fifth of
the steps. A task that has a file in benchmarks/results/rule-trials is not run again; the table is
made of all files there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from discorl.comparison.statistics import aggregate, probability_of_improvement
from discorl.rules.actor_critic import ActorCriticSettings
from discorl.rules.store import embedded_rules
from discorl.training import presets
from discorl.training.config import TrainConfig
from discorl.training.train import train

TASKS = (
    "catch:10x6",
    "gym:CartPole-v1",
    "umbrella:10",
    "grid:random-small",
    "deep-sea:5",
    "bandit:5x4",
    "gym:Acrobot-v1",
    "mdp:20x6",
    "catch:12x9",
    "balance:4x3",
    "chain:20:noisy",
    "grid:random-sparse",
    "gym:LunarLander-v3",
)
"""Sizes, layouts and kinds of tasks that disco-mini has not trained on."""
STEPS = 250
SEEDS = range(8)
TUNING_SEEDS = (100, 101, 102, 103, 104)
NUM_FINALISTS = 6
WAYS = {
    "fresh": {"updates_per_step": 1, "replay_share": 0.0, "replay_capacity": 16},
    "replay": {"updates_per_step": 4, "replay_share": 0.5, "replay_capacity": 128},
}
"""How the actor-critic may learn: as most do, or as the rule's preset does."""
LEARNING_RATES = (1e-3, 3e-3, 1e-2, 3e-2)
ENTROPY_COSTS = (0.003, 0.03, 0.1)
SAMPLES = 2000
RESULTS = Path(__file__).parent / "results"


def of_rule(task: str, rule: str) -> TrainConfig:
    """The preset of the rule."""
    shipped = next(embedded_rules())[0]
    config = presets.for_rule(presets.for_task(task), shipped)
    return replace(config, rule=rule, steps=STEPS, mask_episode_starts=False, progress="none")


def of_actor_critic(task: str, way: str, rate: float, cost: float) -> TrainConfig:
    """The same, but for how it learns."""
    config = of_rule(task, "actor-critic")
    return replace(
        config,
        **WAYS[way],
        optimiser=replace(config.optimiser, learning_rate=rate),
        actor_critic=ActorCriticSettings(entropy_cost=cost, num_bins=81, max_abs_value=20.0),
    )


def score(config: TrainConfig, seed: int) -> float:
    """Mean return over the last fifth of the steps."""
    with tempfile.TemporaryDirectory() as folder:
        config = replace(config, seed=seed, log_every=STEPS // 5, out=Path(folder) / "run")
        result = train(config)
        if result.interrupted:  # Ctrl-C and SIGTERM end a run cleanly; half a run has no score
            raise SystemExit(130)
        return float(result.metrics[-1]["return"])


def tuned(task: str) -> tuple[str, float, float]:
    """How the actor-critic does best on a task: all with one seed, then the best with more."""

    def mean(x: tuple[str, float, float], seeds: Iterable[int]) -> float:
        return float(np.mean([score(of_actor_critic(task, *x), s) for s in seeds]))

    grid = itertools.product(WAYS, LEARNING_RATES, ENTROPY_COSTS)
    first, *more = TUNING_SEEDS
    best = sorted(grid, key=lambda x: mean(x, [first]))[-NUM_FINALISTS:]
    return max(best, key=lambda x: mean(x, more))


def run(task: str, rule: str, file: Path) -> None:
    """Train the rule on all seeds; tune and train the baseline too, if the file has none."""
    known = json.loads(file.read_text()) if file.is_file() else baseline(task)
    content = known | {
        "task": task,
        "rule": rule,
        "rule_scores": [score(of_rule(task, rule), s) for s in SEEDS],
        "date": time.strftime("%Y-%m-%d"),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1) + "\n")


def baseline(task: str) -> dict[str, Any]:
    """The actor-critic, tuned, on all seeds."""
    best = tuned(task)
    print(f"{task}: the actor-critic does best with {best}", flush=True)
    return {
        "actor_critic_settings": best,
        "actor_critic_scores": [score(of_actor_critic(task, *best), s) for s in SEEDS],
    }


def table(results: list[dict]) -> str:
    """Markdown: interquartile means, and how likely the rule is to be ahead."""
    config = of_rule(results[0]["task"], results[0]["rule"])
    env_steps = STEPS * config.num_envs * config.rollout_length
    lines = [
        f"# {results[0]['rule']} against a tuned actor-critic",
        "",
        f"{len(SEEDS)} seeds each, {env_steps:,} environment steps; interquartile mean of the mean "
        "return over the last fifth of the steps, with 95 % bootstrap intervals. Made by "
        "`python -m benchmarks.rule_trials`.",
        "",
        "| task | the rule | actor-critic | learns from, rate, entropy | P(rule better) |",
        "|---|---|---|---|---|",
    ]
    for r in results:
        ours, theirs = np.array(r["rule_scores"]), np.array(r["actor_critic_scores"])
        rng = np.random.default_rng(0)
        better = probability_of_improvement([ours], [theirs], SAMPLES, rng)
        way, rate, cost = r["actor_critic_settings"]
        cells = [_cell(ours), _cell(theirs), f"{way}, {rate:g}, {cost:g}", f"{better.value:.2f}"]
        lines.append(f"| {r['task']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(values: np.ndarray) -> str:
    iqm = aggregate([values], SAMPLES, np.random.default_rng(0))
    return f"{iqm.value:.3g} ({iqm.low:.3g} to {iqm.high:.3g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tasks", nargs="*", default=TASKS, metavar="TASK")
    parser.add_argument("--rule", default=next(embedded_rules())[0])
    parser.add_argument(
        "--rule-again", action="store_true", help="of tasks that have a file, run the rule again"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    folder = RESULTS / "rule-trials"
    for task in args.tasks:
        file = folder / f"{Path(args.rule).stem}-{task.replace(':', '-')}.json"
        if args.rule_again or not file.is_file():
            run(task, args.rule, file)
    files = sorted(folder.glob(f"{Path(args.rule).stem}-*.json"))
    results = [json.loads(file.read_text()) for file in files]
    results.sort(key=lambda r: TASKS.index(r["task"]) if r["task"] in TASKS else len(TASKS))
    text = table(results)
    (RESULTS / f"rule-trials-{Path(args.rule).stem}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
