"""The command line."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from benchmarks.learning.queue import Queue, jobs_of, outlook
from benchmarks.learning.report import write_report
from benchmarks.learning.tasks import ALGORITHMS, SUITES, TASKS, LearningTask

EXAMPLES = """\
examples:
  python -m benchmarks.learning run classic                 a table: hours; stop it when you like
  python -m benchmarks.learning run classic minatar --jobs 2
  python -m benchmarks.learning run classic-cartpole-v1 --seeds 0 --rules disco103
  python -m benchmarks.learning left                        what is left, and how long it will take
  python -m benchmarks.learning report                      tables and plots of what is done
"""


def parse() -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning",
        description="Our rules beside PPO, at equal environment steps.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run", help="train what is missing; what is done is kept, what was stopped goes on"
    )
    add = run.add_argument
    add(
        "what",
        nargs="+",
        metavar="SUITE|TASK",
        help=f"a suite ({', '.join(SUITES)}) or a task ({', '.join(TASKS)})",
    )
    add("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    add("--rules", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    add("--jobs", type=int, default=1, help="runs at a time, each on one thread")
    add("--sb3-python", type=Path, metavar="PATH",
        help="an interpreter with peers/sb3_ppo.txt, not one made under .bench/")  # fmt: skip
    commands.add_parser("left", help="say for each suite what is left, and for how long")
    commands.add_parser("report", help="write tables and plots of the results that are there")
    options = parser.parse_args()
    for name in getattr(options, "what", []):
        if name not in TASKS and name not in SUITES:
            parser.error(f"there is no suite or task '{name}': use {', '.join([*SUITES, *TASKS])}")
    return options


def main() -> None:
    """Run what is missing, or say what is there."""
    options = parse()
    if options.command == "report":
        print(write_report())
    elif options.command == "left":
        for name, tasks in SUITES.items():
            print(f"{name}: {outlook(jobs_of(tasks, ALGORITHMS, range(5)))}")
    else:
        queue = Queue(
            jobs_of(_tasks(options.what), options.rules, options.seeds),
            options.jobs,
            options.sb3_python,
        )
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            queue.work()
        except KeyboardInterrupt:
            sys.exit(130)


def _tasks(names: list[str]) -> list[LearningTask]:
    """The tasks of suites, and single ones."""
    return [task for name in names for task in SUITES.get(name) or (TASKS[name],)]
