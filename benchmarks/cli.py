"""The command line."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path

from benchmarks.jobs import JOBS, MEMORY, NAMES
from benchmarks.machine import commit, machine_facts
from benchmarks.measure import Session, measure_memory, time_jobs
from benchmarks.report import report_stem, write_report
from benchmarks.workers import (
    COMPILED,
    OURS,
    PEERS,
    another_tree,
    find_implementations,
    pin_to_cores,
    use_rule,
)

DESCRIPTION = """\
Time discorl and its peers at the same work, side by side.

Each implementation runs in a process of its own. In every round each of them does each job, one
after the other, so that all see the same noise of the machine; compare ratios, not times. Run it
on a machine where nothing else runs: the report says how busy the machine was with other things.

The JAX reference is taken from the source tree that DISCO_RL_PATH names; disco-torch comes from
the package index. What they need is installed under .bench/. A peer that cannot be had is reported
as absent. The public Disco103 weights are found as discorl finds them (DISCORL_DISCO103, then the
user's cache, then the download).
"""

EXAMPLES = f"""\
jobs: {", ".join(NAMES)}

examples:
  python -m benchmarks                                everything, about ten minutes
  python -m benchmarks --quick                        does it work? (the figures mean little)
  python -m benchmarks --only train_step matmul matmul_kernel   the training step and its limit
  python -m benchmarks --peers --only train_step      discorl alone
  python -m benchmarks --peers --other-tree ../before --only train_step   two trees by turns
  python -m benchmarks --scaling                      how our cost grows, with plots
  python -m benchmarks --profile                      where our training step's time goes
"""


def parse() -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--only", nargs="+", choices=NAMES, default=NAMES, metavar="JOB", help="jobs to run")
    add("--peers", nargs="*", choices=PEERS, default=list(PEERS), metavar="PEER",
        help=f"compare with these: {', '.join(PEERS)}; none if left empty")  # fmt: skip
    add("--rounds", type=int, default=10, help="how often each job is visited (default: 10)")
    add("--quick", action="store_true", help="2 rounds of one timing each")
    add("--scaling", action="store_true", help="measure instead how our time and memory grow")
    add("--profile", action="store_true", help="show instead where our training step's time goes")
    add("--processor-time", action="store_true",
        help="take processor time, for a busy machine; best with --threads 1")  # fmt: skip
    add("--threads", type=int, default=2, help="threads and cores for everyone (default: 2)")
    add("--out", type=Path, default=Path(__file__).parent / "results", metavar="DIR",
        help="where the report goes (default: benchmarks/results)")  # fmt: skip
    add("--other-tree", type=Path, metavar="DIR",
        help="compare with another source tree of discorl, such as an older commit's")  # fmt: skip
    add("--skip-install", action="store_true", help="install nothing; peers not there are absent")
    add("--jax-python", type=Path, metavar="PATH",
        help="an interpreter with the reference's requirements, instead of .bench/jax")  # fmt: skip
    add("--disco-torch-python", type=Path, metavar="PATH",
        help="an interpreter with disco-torch, instead of .bench/disco-torch")  # fmt: skip
    options = parser.parse_args()
    if options.rounds < 1 or options.threads < 1:
        parser.error("--rounds and --threads are at least 1")
    return options


def main() -> None:
    """Measure, write the report, print it."""
    options = parse()
    pin_to_cores(options.threads)
    use_rule()
    if options.profile:
        from benchmarks.step_profile import profile_step  # brings torch

        for compiled in (False, True):
            print(profile_step(compiled))
        return
    now = datetime.now()
    settings = {
        "date": f"{now:%Y-%m-%d}",
        "machine": machine_facts(),
        "commit": commit(),
        "threads": options.threads,
        "clock": "processor_seconds" if options.processor_time else "seconds",
    }
    if options.scaling:
        from benchmarks.scaling import measure_scaling  # brings matplotlib

        measure_scaling(settings, options.out, report_stem(now, "scaling"), options.quick)
        return
    rounds = min(options.rounds, 2) if options.quick else options.rounds
    port, jax = options.disco_torch_python, options.jax_python
    pythons = {"jax": jax, "jax-in-turn": jax, "disco-torch": port, "disco-torch-fast": port}
    implementations, absent = find_implementations(
        options.peers, pythons, install=not options.skip_install
    )
    if options.other_tree:
        implementations.append(another_tree(options.other_tree, OURS))
        if COMPILED in implementations:
            implementations.append(another_tree(options.other_tree, COMPILED))
    for name, reason in absent.items():
        print(f"{name} is absent: {reason}", flush=True)
    session = Session(absent=absent)
    jobs = [job for job in JOBS if job.name in options.only]
    if jobs:
        clock, threads = settings["clock"], options.threads
        time_jobs(session, implementations, jobs, rounds, threads, options.quick, clock)
    if MEMORY in options.only:
        measure_memory(session, implementations, options.threads)
    complete = set(options.only) == set(NAMES) and not options.quick
    stem = report_stem(now, "bench" if complete else "partial")
    print()
    print(write_report(session, settings | {"rounds": rounds}, options.out, stem))
    print(f"written to {options.out / stem}.md and .json")
