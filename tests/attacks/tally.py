"""Counting what became of the cases, as they come and at the end."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, get_args

from tests.attacks.attack import Case, Verdict

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
MAX_SHOWN = 20


@dataclass
class Tally:
    """The cases of one attack."""

    name: str
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    is_done: bool = False

    @property
    def tried(self) -> int:
        """How many cases there were."""
        return self.counts.total()

    def add(self, case: Case) -> None:
        """Count a case; a failure is said at once, with the way to have it again."""
        self.counts[case.verdict] += 1
        if case.verdict != "failed":
            return
        again = f"python -m tests.attacks --only {self.name} --seed {self.seed} "
        again += f"--first {case.number} --count 1"
        self.failures.append({"number": case.number, "what": case.what, "again": again})
        if len(self.failures) <= MAX_SHOWN:
            print(f"FAILED {case.what}\n  again: {again}", flush=True)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        counts = {verdict: self.counts[verdict] for verdict in VERDICTS}
        about = {"name": self.name, "seed": self.seed, "tried": self.tried}
        return about | counts | {"seconds": round(self.seconds, 1), "failures": self.failures}


def line(tallies: list[Tally], start: float) -> str:
    """How far it is, in one line."""
    begun = [t for t in tallies if t.tried]
    passed = f"{(time.monotonic() - start) / 60:.1f} min"
    failed = sum(t.counts["failed"] for t in begun)
    return f"{passed}: {sum(t.tried for t in begun)} cases, {failed} failed; " + ", ".join(
        f"{t.name} {t.tried}" for t in begun
    )


def table(tallies: list[Tally]) -> str:
    """Everything, at the end."""
    rows = [("attack", "tried", *VERDICTS, "s")]
    rows += [
        (t.name, str(t.tried), *(str(t.counts[v]) for v in VERDICTS), f"{t.seconds:.0f}")
        for t in tallies
    ]
    rows.append(
        (
            "all",
            str(sum(t.tried for t in tallies)),
            *(str(sum(t.counts[v] for t in tallies)) for v in VERDICTS),
            f"{sum(t.seconds for t in tallies):.0f}",
        )
    )
    return "\n".join(f"{row[0]:28}" + "".join(f"{x:>10}" for x in row[1:]) for row in rows)
