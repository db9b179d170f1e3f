"""The command line."""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

from benchmarks.learning.report import write_report
from benchmarks.learning.run import path_of, run_once, save
from benchmarks.learning.tasks import ALGORITHMS, PPO, TASKS

EXAMPLES = """\
examples:
  python -m benchmarks.learning run                         all that is not done yet: hours
  python -m benchmarks.learning run cartpole --seeds 0 --rules disco103
  python -m benchmarks.learning run pong                    never run unless named
  python -m benchmarks.learning report                      tables and plots of what is done
"""


def parse() -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning",
        description="Disco103 beside the actor-critic and PPO, at equal environment steps.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train; results that are there are kept")
    add = run.add_argument
    add(
        "tasks",
        nargs="*",
        metavar="TASK",
        help=f"of {', '.join(TASKS)}; all but pong if none is named",
    )
    add("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add("--rules", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    add("--minutes", type=float, help="stop each run after this time and keep what it has")
    add("--sb3-python", type=Path, metavar="PATH",
        help="an interpreter with peers/sb3_ppo.txt, not one made under .bench/")  # fmt: skip
    commands.add_parser("report", help="write tables and plots of the results that are there")
    options = parser.parse_args()
    for name in getattr(options, "tasks", []):
        if name not in TASKS:
            parser.error(f"there is no task '{name}': use {', '.join(TASKS)}")
    return options


def main() -> None:
    """Run what is missing, or report what is there."""
    options = parse()
    if options.command == "report":
        print(write_report())
        return
    tasks = [TASKS[name] for name in options.tasks]
    tasks = tasks or [task for task in TASKS.values() if not task.on_request]
    # Seeds outermost: a queue that is stopped early has some of everything.
    for seed, task, rule in itertools.product(options.seeds, tasks, options.rules):
        path = path_of(task, rule, seed)
        if path.exists() or (rule == PPO and task.ppo is None):
            continue
        print(f"{time.strftime('%H:%M:%S')} {task.name} {rule} seed {seed}", flush=True)
        result = run_once(task, rule, seed, options.sb3_python, options.minutes)
        save(result, path)
        print(f"  {result['seconds']:.0f} s, last {result['curve'][-1:]}", flush=True)
