"""Signals at random moments: what was computed is saved, and the run goes on to the same end."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.attacks import forked
from tests.attacks.attack import Case, dice
from tests.attacks.crash_points import undisturbed
from tests.attacks.programs import Program, go_on
from tests.attacks.whole import differences

STEPS = 30
SIGNALS: tuple[signal.Signals, ...] = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
TO_GROUP = (signal.SIGINT, signal.SIGHUP)
"""What a terminal sends, to all processes that were started in it."""
ENDS = (0, 2, 130)
"""Exit codes of a program that decided itself how to end."""


@dataclass(frozen=True)
class Signals:
    """Up to three signals in the life of a run, each to the process that resumed it."""

    program: Program

    @property
    def name(self) -> str:
        return f"signal-{self.program.name}"

    @property
    def num_cases(self) -> int | None:
        return None

    def cases(self, seed: int, first: int, count: int, room: Path) -> Iterator[Case]:
        whole = undisturbed(self.program, room, STEPS)
        for number in range(first, first + count):
            rng = dice(self.name, seed, number)
            signals = rng.choices(SIGNALS, k=rng.randint(1, 3))
            delays = [rng.uniform(0, whole.seconds) for _ in signals]
            plan = list(zip(signals, delays, strict=True))
            what = ", ".join(f"{s.name} after {delay:.2f} s" for s, delay in plan)
            said = self._case(plan, whole.folder, room / "attacked")
            verdict = "failed" if said else "survived"
            yield Case(number, verdict, f"{self.name}: {what}{f': {said}' if said else ''}")

    def _case(
        self, plan: list[tuple[signal.Signals, float]], whole: Path, folder: Path
    ) -> str | None:
        """What went wrong, if anything."""
        shutil.rmtree(folder, ignore_errors=True)
        spoken = folder.with_suffix(".said")
        for number, delay in plan:
            before = _last_row(folder)
            child = forked.start(partial(go_on, self.program, folder, STEPS), spoken)
            time.sleep(delay)
            child.send(number, to_group=number in TO_GROUP)
            ended = child.wait()
            if ended.timed_out or ended.code not in (*ENDS, -number):
                return f"{number.name} ended it badly: {ended.last_words}"
            if ended.code == 2:
                return f"{number.name} became an error: {ended.last_words}"
            if number != signal.SIGKILL and (said := self._lost(folder, before)):
                return f"{number.name}: {said} ({ended.last_words})"
        ended = forked.run(partial(go_on, self.program, folder, STEPS), spoken)
        if ended.code != 0:
            return f"it did not resume: {ended.last_words}"
        found = differences(whole, folder, is_exact=self.program.is_exact, was_stopped=True)
        return "; ".join(found) or None

    def _lost(self, folder: Path, before: int) -> str | None:
        """Each step is logged: whatever this process logged must be saved."""
        last, saved = _last_row(folder), self.program.saved_step(folder)
        if last <= max(before, saved):
            return None
        return f"step {last} was logged, but only {saved} is saved"


def _last_row(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return max((json.loads(x)["step"] for x in lines if x.endswith("\n")), default=0)
