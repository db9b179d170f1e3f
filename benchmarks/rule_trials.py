"""A discovered rule against the actor-critic, on tasks that the rule has never seen.

    python -m benchmarks.rule_trials                      # the rule that ships with the package
    python -m benchmarks.rule_trials --rule PATH --agents 16 --updates 400

Both train fresh agents with the same network, environments and budget, many seeds side by side.
The actor-critic has its learning rate and entropy cost tuned for every task, on other seeds; the
rule has nothing tuned. Scores are mean returns over the last fifth of the updates. Writes a table
to benchmarks/results.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from discorl.analysis.statistics import aggregate, probability_of_improvement
from discorl.discover_presets import suite
from discorl.discovery.trial import run_trial
from discorl.rules import ActorCritic
from discorl.rules.base import UpdateRule
from discorl.rules.store import embedded_rules, load_rule
from discorl.rules.values import ReturnSettings, ValueHead
from discorl.runs.discover_config import DiscoverConfig, GroupConfig
from discorl.runs.discover_setup import make_group
from discorl.types import Params

TASKS = (
    "catch:10x6",
    "catch:6x12",
    "grid:random-small",
    "grid:random-sparse",
    "cartpole",
    "umbrella:10",
    "bandit:5x4",
    "deep-sea:5",
)
LEARNING_RATES = (3e-3, 1e-2, 3e-2)
ENTROPY_COSTS = (0.003, 0.03, 0.1)
TUNING_AGENTS = 4
SAMPLES = 2000


def scores(
    config: DiscoverConfig,
    task: str,
    rule: UpdateRule,
    params: Params,
    num_agents: int,
    updates: int,
    seed: int,
) -> np.ndarray:
    """Mean return over the last fifth of the updates, for each of the agents."""
    given = replace(GroupConfig.parse(task, config.net), num_agents=num_agents)
    group = make_group(config, given, rule, torch.device("cpu"))
    curve = run_trial(group, params, updates, torch.Generator().manual_seed(seed))
    return curve[-max(1, updates // 5) :].nanmean(0).double().numpy()


def actor_critic(entropy_cost: float, config: DiscoverConfig) -> ActorCritic:
    """The baseline with the rule's own returns and value bins."""
    head = ValueHead(config.rule.num_bins, config.rule.max_abs_value)
    returns = ReturnSettings(config.rule.discount, config.rule.lambda_)
    return ActorCritic(value_head=head, returns=returns, entropy_cost=entropy_cost)


def tuned(config: DiscoverConfig, task: str, updates: int) -> tuple[float, float]:
    """The learning rate and entropy cost with the best mean, on seeds of their own."""
    best = (-np.inf, 0.0, 0.0)
    for rate, cost in itertools.product(LEARNING_RATES, ENTROPY_COSTS):
        at_rate = replace(config, learning_rate=rate)
        rule = actor_critic(cost, config)
        mean = float(scores(at_rate, task, rule, {}, TUNING_AGENTS, updates, seed=777).mean())
        best = max(best, (mean, rate, cost))
    return best[1], best[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rule", default=None)
    parser.add_argument("--agents", type=int, default=16)
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--tasks", nargs="*", default=TASKS)
    parser.add_argument("--name", default=time.strftime("%Y-%m-%d-rule-trials"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rule = load_rule(args.rule or next(embedded_rules())[0])
    config = replace(suite(), held_out=())
    results = {}
    lines = [
        f"# {rule.name} against a tuned actor-critic",
        "",
        f"{args.agents} agents each, {args.updates} updates of {config.window.num_envs} x "
        f"{config.window.rollout_length} steps; interquartile mean of the mean return over the "
        "last fifth, with 95 % bootstrap intervals. Made by `python -m benchmarks.rule_trials`.",
        "",
        f"| task | {rule.name} | actor-critic | its rate, entropy | P(rule better) |",
        "|---|---|---|---|---|",
    ]
    for task in args.tasks:
        rate, cost = tuned(config, task, args.updates)
        ours = scores(config, task, rule.rule, rule.params, args.agents, args.updates, seed=1)
        at_rate = replace(config, learning_rate=rate)
        base = actor_critic(cost, config)
        theirs = scores(at_rate, task, base, {}, args.agents, args.updates, seed=1)
        rng = np.random.default_rng(0)
        better = probability_of_improvement([ours], [theirs], SAMPLES, rng)
        cells = [_cell(ours), _cell(theirs), f"{rate:g}, {cost:g}", f"{better.value:.2f}"]
        lines.append(f"| {task} | {' | '.join(cells)} |")
        results[task] = {"rule": ours.tolist(), "actor_critic": theirs.tolist()}
        results[task] |= {"learning_rate": rate, "entropy_cost": cost}
        print(lines[-1], flush=True)
    folder = Path(__file__).parent / "results"
    (folder / f"{args.name}.md").write_text("\n".join(lines) + "\n")
    (folder / f"{args.name}.json").write_text(json.dumps(results, indent=1) + "\n")


def _cell(values: np.ndarray) -> str:
    iqm = aggregate([values], SAMPLES, np.random.default_rng(0))
    return f"{iqm.value:.2f} ({iqm.low:.2f} to {iqm.high:.2f})"


if __name__ == "__main__":
    main()
