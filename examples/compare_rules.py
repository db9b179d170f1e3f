"""Your rule against others: train with each on several seeds, then compare with intervals.

python examples/compare_rules.py --rules disco103 actor-critic
python examples/compare_rules.py --rules runs/my-discovery/rule.npz actor-critic --seeds 0 1 2 3 4

On the command line: run `discorl train` for each rule and seed, then `discorl compare`.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from rich.console import Console

import discorl
from discorl.comparison.report import html_report
from discorl.comparison.table import print_comparison
from discorl.runs.files import write_text


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rules", nargs="+", default=["disco103", "actor-critic"])
    parser.add_argument("--task", default="catch")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--num-envs", type=int, default=16, help="the same for all rules")
    parser.add_argument("--batch-size", type=int, help="in place of the presets'")
    parser.add_argument("--out", type=Path, default=Path("runs/comparison"))
    args = parser.parse_args()

    folders = []
    for number, rule in enumerate(args.rules):
        for seed in args.seeds:
            preset = discorl.presets.for_run(args.task, rule)
            config = replace(
                preset,
                seed=seed,
                steps=args.steps,
                num_envs=args.num_envs,
                batch_size=args.batch_size or preset.batch_size,
                out=args.out / f"rule-{number}-seed-{seed}",
                progress="lines",
            )
            folders.append(discorl.train(config).folder)

    comparison = discorl.compare(folders)
    print_comparison(comparison, Console())
    for task in comparison.tasks:
        for group in task.groups:
            score = group.score
            print(f"{group.label} on {task.task}: {score.value:.3f} ({len(group.runs)} seeds)")
    page = args.out / "comparison.html"
    write_text(page, html_report(comparison))
    print(f"open {page}")


if __name__ == "__main__":
    main()
