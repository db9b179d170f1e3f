"""``python -m tests.attacks``: attack for as long as you like, or as often."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # before torch is imported

from tests.attacks import forked
from tests.attacks.attack import Attack
from tests.attacks.corpus import Replay
from tests.attacks.crash_points import CrashPoints
from tests.attacks.environments import BadEnvironments
from tests.attacks.fuzz import Bombs, Fuzz
from tests.attacks.programs import PROGRAMS
from tests.attacks.ranks import DyingRanks
from tests.attacks.signals import Signals
from tests.attacks.tally import Tally, line, table
from tests.attacks.targets import TARGETS

SAY_EVERY = 30
TURN = {"fuzz": 200, "corpus": 200, "bomb": 20}
"""Cases at a time; other attacks take one."""
WEIGHTS = {
    "fuzz": 2,
    "fuzz-rule": 4,
    "fuzz-agent": 5,
    "fuzz-checkpoint": 9,
    "fuzz-config": 6,
    "fuzz-metrics": 8,
}
"""Shares of the time, where they are not 1: in two hours 10,000 files of each of these."""


def all_attacks() -> list[Attack]:
    """Every attack there is; the ones with an end come first."""
    return [
        *(Replay(t) for t in TARGETS),
        *(Bombs(t) for t in TARGETS),
        *(BadEnvironments(workers) for workers in ("sync", "async")),
        *(CrashPoints(p) for p in PROGRAMS),
        *(Signals(p) for p in PROGRAMS if p.name != "trainer"),
        DyingRanks(),
        *(Fuzz(t) for t in TARGETS),
    ]


def main(argv: list[str] | None = None) -> int:
    """Attack in turn until the time is up or there is nothing left; 1 if anything failed."""
    args = _arguments(argv)
    known = all_attacks()
    names = {a.name for a in known}
    counts = {name: _count(name, names, args) for name in names}
    chosen = [a for a in known if counts[a.name] != 0]
    if not chosen:
        print(f"no such attack; there are {', '.join(a.name for a in known)}", file=sys.stderr)
        return 2
    forked.import_everything()
    tallies = {a.name: Tally(a.name, args.seed) for a in chosen}
    with tempfile.TemporaryDirectory(prefix="discorl-attacks-") as room:
        _attack(chosen, tallies, counts, args, Path(room))
    print(table(list(tallies.values())))
    if args.out:
        summary = {"seed": args.seed, "attacks": [t.as_dict() for t in tallies.values()]}
        args.out.write_text(json.dumps(summary, indent=2) + "\n")
    return int(any(t.counts["failed"] for t in tallies.values()))


def _attack(
    chosen: list[Attack],
    tallies: dict[str, Tally],
    counts: dict[str, int | None],
    args: argparse.Namespace,
    room: Path,
) -> None:
    """Whoever has had the least of its share of the time is next."""
    start = said = time.monotonic()
    deadline = start + 60 * args.minutes if args.minutes else float("inf")
    while time.monotonic() < deadline:
        waiting = [a for a in chosen if not tallies[a.name].is_done]
        if not waiting:
            break
        attack = min(waiting, key=lambda a: tallies[a.name].seconds / _weight(a.name))
        _turn(attack, tallies[attack.name], counts[attack.name], args, room / attack.name)
        if time.monotonic() - said > SAY_EVERY:
            said = time.monotonic()
            print(line(list(tallies.values()), start), flush=True)


def _turn(
    attack: Attack, tally: Tally, wanted: int | None, args: argparse.Namespace, room: Path
) -> None:
    room.mkdir(exist_ok=True)
    last = None if wanted is None else args.first + wanted
    ends = [n for n in (attack.num_cases, last) if n is not None]
    first = args.first + tally.tried
    count = min([TURN.get(attack.name.split("-")[0], 1), *(end - first for end in ends)])
    start = time.monotonic()
    if count > 0:
        for case in attack.cases(args.seed, first, count, room):
            tally.add(case)
            if args.keep and case.verdict == "failed" and isinstance(attack, Fuzz):
                Replay(attack.target).keep(attack, args.seed, case, room)
    tally.seconds += time.monotonic() - start
    tally.is_done = count <= 0 or any(args.first + tally.tried >= end for end in ends)


def _weight(name: str) -> int:
    return WEIGHTS.get(name, WEIGHTS.get(name.split("-")[0], 1))


def _count(name: str, names: set[str], args: argparse.Namespace) -> int | None:
    """How many cases of an attack are wanted: 0 if it was not chosen, None if there is no limit."""
    if not args.only:
        return args.count
    for word in args.only:
        kind, _, count = word.partition("=")
        if name == kind or (kind not in names and name.startswith(f"{kind}-")):
            return int(count) if count else args.count
    return 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    parser.add_argument("--minutes", type=float, help="stop after so many minutes")
    parser.add_argument("--count", type=int, help="stop each attack after so many cases")
    names = "names or their beginnings, with a count of their own if wanted"
    parser.add_argument("--only", nargs="+", metavar="ATTACK[=COUNT]", help=names)
    parser.add_argument("--seed", type=int, default=0, help="another seed, other cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--out", type=Path, help="write a summary to this JSON file")
    parser.add_argument("--keep", action="store_true", help="keep files that fail in the corpus")
    args = parser.parse_args(argv)
    if args.minutes is None and args.count is None and "=" not in " ".join(args.only or []):
        args.minutes = 10.0
    return args


if __name__ == "__main__":
    sys.exit(main())
