"""Files that once failed: kept, and read again for ever."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.attacks.attack import Case
from tests.attacks.fuzz import Fuzz, Plant, watched, write_file
from tests.attacks.targets import Target, make_original

FOLDER = Path(__file__).parent / "corpus"
INDEX = FOLDER / "index.json"
MAX_BYTES = 100_000
"""Larger ones stay out; what makes them large belongs into bombs.py."""


@dataclass(frozen=True)
class Replay:
    """The corpus of one kind of file."""

    target: Target

    @property
    def name(self) -> str:
        return f"corpus-{self.target.name}"

    @property
    def num_cases(self) -> int | None:
        return len(self.target.readers) * len(self._names)

    @property
    def _names(self) -> list[str]:
        return [name for name in sorted(read_index()) if name.startswith(f"{self.target.name}/")]

    def cases(self, seed: int, first: int, count: int, room: Path) -> Iterator[Case]:
        original, names, index = make_original(self.target, room), self._names, read_index()

        def plant(number: int, canary: Path) -> tuple[str, Plant]:
            name = names[number // len(self.target.readers)]
            # What a file's pickles would make depends on where it was found.
            data = (FOLDER / name).read_bytes()
            return f"{name} ({index[name]})", lambda path: write_file(path, data)

        last = min(first + count, self.num_cases or 0)
        yield from watched(self.target, original, plant, range(first, last), room)

    def keep(self, attack: Fuzz, seed: int, case: Case, room: Path) -> None:
        """Add the file of a case that failed."""
        data = attack.file(seed, case.number, room)
        if self.target.is_text:  # where it was made does not matter, and is nobody's business
            data = data.replace(str(room).encode(), b"ROOM")
        if len(data) > MAX_BYTES:
            print(f"not kept, because it has {len(data)} bytes: {case.what}")
            return
        name = f"{self.target.name}/{seed}-{case.number}"
        (FOLDER / self.target.name).mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_bytes(data)
        said = case.what.partition(": ")[2].replace(str(room), "ROOM")[:200]
        INDEX.write_text(json.dumps(read_index() | {name: said}, indent=2, sort_keys=True) + "\n")


def read_index() -> dict[str, str]:
    """What each file of the corpus did when it was found, by its name."""
    return json.loads(INDEX.read_text()) if INDEX.exists() else {}
