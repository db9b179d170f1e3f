"""Rules against each other, an actor-critic and PPO, on tasks that no rule has seen.

    python -m benchmarks.rule_trials                       # all that is missing, then the table
    python -m benchmarks.rule_trials --contestants cmpo new.npz --tasks gym:CartPole-v1
    python -m benchmarks.rule_trials --table               # of what is there
    python -m benchmarks.rule_trials --choose-setting      # the actor-critic's, for all tasks

The first contestant is compared with the others. One can be a rule's file. A rule has one setting
everywhere; what is tuned for a task is tuned on seeds of its own.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from benchmarks.rule_trials.contestants import (
    ESTIMATED,
    UNTRAINED,
    Contestant,
    actor_critics,
    contestants,
)
from benchmarks.rule_trials.contestants import of_rule as of_rule_file
from benchmarks.rule_trials.report import report
from benchmarks.rule_trials.results import RESULTS, TUNING_SEEDS, path_of, run
from benchmarks.rule_trials.tasks import CHOSEN_ON, HELD_OUT, HELD_OUT_LATER
from discorl.atomic import write_atomically


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    known = contestants()
    entered = [name for name in known if name not in (UNTRAINED, ESTIMATED)]
    tasks = (*HELD_OUT, *HELD_OUT_LATER)
    parser.add_argument("--contestants", nargs="+", default=entered, metavar="NAME")
    parser.add_argument("--tasks", nargs="+", default=tasks, metavar="TASK")
    parser.add_argument("--again", action="store_true", help="run also what has a result")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--choose-setting", action="store_true", help="for the actor-critic")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.choose_setting:
        choose_setting()
        return
    first, *others = (known.get(name) or of_rule_file(name) for name in args.contestants)
    if not args.table:
        for contestant in (known[UNTRAINED], first, *others):
            run_missing(contestant, args.tasks, args.again)
    text = report(first, others, args.tasks)
    write_atomically(RESULTS / f"rule-trials-{first.name}.md", text.encode())
    print(text)


def run_missing(contestant: Contestant, tasks: list[str], again: bool) -> None:
    for task in tasks:
        if again or not path_of(contestant.name, task).is_file():
            print(f"{contestant.name} on {task}", flush=True)
            run(contestant, task)


def choose_setting() -> None:
    """By the mean rank over tasks that are not among the held-out ones."""
    ranks: dict[str, list[int]] = {}
    for task in CHOSEN_ON:
        scores = {name: score(TUNING_SEEDS[0]) for name, score in actor_critics(task).items()}
        for rank, name in enumerate(sorted(scores, key=lambda name: -scores[name])):
            ranks.setdefault(name, []).append(rank)
        print(task, max(scores, key=lambda name: scores[name]), flush=True)
    for name in sorted(ranks, key=lambda name: np.mean(ranks[name])):
        print(f"{np.mean(ranks[name]):5.1f}  {name}")


if __name__ == "__main__":
    main()
