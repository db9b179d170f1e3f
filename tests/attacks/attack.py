"""What an attack is: numbered cases, each of which ends well or does not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

Verdict = Literal["survived", "refused", "accepted", "failed"]


@dataclass(frozen=True)
class Case:
    """What became of one case."""

    number: int
    verdict: Verdict
    """``survived`` is for runs; a file is ``refused`` in one line, or ``accepted``."""
    what: str
    """What was done, and for a failure how it ended."""


class Attack(Protocol):
    """A kind of attack."""

    @property
    def name(self) -> str:
        """What it is called on the command line."""
        ...

    @property
    def num_cases(self) -> int | None:
        """How many cases there are; None if there is no end to them."""
        ...

    def cases(self, seed: int, first: int, count: int, room: Path) -> Iterator[Case]:
        """The cases from number ``first`` on; ``room`` is a folder that stays between calls."""
        ...


def dice(name: str, seed: int, number: int) -> random.Random:
    """The random choices of one case."""
    return random.Random(f"{name} {seed} {number}")
