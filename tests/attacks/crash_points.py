"""kill -9 before, in the middle of, and after each change to a run's files; then on to its end."""

from __future__ import annotations

import json
import random
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.attacks import forked
from tests.attacks.attack import Case, dice
from tests.attacks.crash import Injector, Point
from tests.attacks.programs import Program, go_on
from tests.attacks.whole import differences

STEPS = 5
KILLED = -9
MAX_CRASHES = 4


@dataclass(frozen=True)
class Whole:
    """A run that nobody disturbed."""

    folder: Path
    calls: list[tuple[str, str]]
    """Its changes to files: the name of the call and the path."""
    seconds: float

    def points(self) -> list[Point]:
        """Every moment at which it can be killed."""
        found = []
        for i, (name, _) in enumerate(self.calls):
            found += [Point(i, "before"), Point(i, "after")]
            found += [Point(i, "half")] if name == "write" else []
        return found

    def saved_before(self, point: Point) -> int:
        """The newest checkpoint that is complete by then."""
        done = self.calls[: point.call + (point.when == "after")]
        matches = [re.search(r"checkpoint-(\d+)\.dc$", p) for name, p in done if name == "replace"]
        return max((int(m[1]) for m in matches if m), default=0)


@dataclass(frozen=True)
class CrashPoints:
    """The crash points of a program in random order, then several crashes in one run."""

    program: Program

    @property
    def name(self) -> str:
        return f"crash-{self.program.name}"

    @property
    def num_cases(self) -> int | None:
        return None

    def cases(self, seed: int, first: int, count: int, room: Path) -> Iterator[Case]:
        whole = undisturbed(self.program, room, STEPS)
        points = whole.points()
        random.Random(f"{self.name} {seed}").shuffle(points)
        for number in range(first, first + count):
            if number < len(points):
                crashes = [points[number]]
            else:
                rng = dice(self.name, seed, number)
                crashes = rng.choices(points, k=rng.randint(2, MAX_CRASHES))
            yield self._case(number, crashes, whole, room / "attacked")

    def _case(self, number: int, crashes: list[Point], whole: Whole, folder: Path) -> Case:
        names = [f"{p.when} {whole.calls[p.call][0]} {whole.calls[p.call][1]}" for p in crashes]
        what = f"{self.name}: killed {', then '.join(names)}"
        shutil.rmtree(folder, ignore_errors=True)
        said = self._crash_and_resume(crashes, whole, folder)
        if said is None:
            return Case(number, "survived", what)
        return Case(number, "failed", f"{what}: {said}")

    def _crash_and_resume(self, crashes: list[Point], whole: Whole, folder: Path) -> str | None:
        """What went wrong, if anything."""
        spoken = folder.with_suffix(".said")
        for i, point in enumerate(crashes):
            ended = forked.run(partial(_run, self.program, folder, point), spoken)
            if ended.code == 0 and i:
                break  # a resumed run makes fewer calls: it is done
            if ended.code != KILLED or ended.timed_out:
                return f"it did not die at {point} but ended: {ended.last_words}"
            if i == 0 and self.program.saved_step(folder) < whole.saved_before(point):
                return f"it had saved step {whole.saved_before(point)}, which is gone"
        saved = self.program.saved_step(folder) if folder.exists() else 0
        ended = forked.run(partial(_run, self.program, folder, None), spoken)
        if ended.code != 0:
            return f"it did not resume: {ended.last_words}"
        if saved and f"step {saved}\n" not in ended.out:
            return f"it did not resume after step {saved}: {ended.out.strip()[-300:]}"
        said = differences(whole.folder, folder, is_exact=self.program.is_exact)
        return "; ".join(said) or None


def undisturbed(program: Program, room: Path, steps: int) -> Whole:
    """The run to compare with; made once for each room."""
    folder, log = room / f"whole-{steps}", room / f"calls-{steps}.json"
    if not log.exists():
        action = partial(_counted_run, program, folder, steps, log)
        ended = forked.run(action, room / "whole.said")
        if ended.code != 0:
            raise RuntimeError(f"{program.name} does not even run undisturbed: {ended.last_words}")
    said = json.loads(log.read_text())
    return Whole(folder, [tuple(call) for call in said["calls"]], said["seconds"])


def _counted_run(program: Program, folder: Path, steps: int, log: Path) -> int:
    injector = Injector(folder)
    injector.install()
    start = time.monotonic()
    code = program.begin(folder, steps)
    log.write_text(json.dumps({"calls": injector.calls, "seconds": time.monotonic() - start}))
    return code


def _run(program: Program, folder: Path, point: Point | None) -> int:
    if point is not None:
        Injector(folder, point).install()
    return go_on(program, folder, STEPS)
