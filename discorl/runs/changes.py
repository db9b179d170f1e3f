"""What may change when a run is resumed; everything else would make it another run."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any

from discorl.errors import DiscorlError


def check_changes(folder: Path | None, before: Any, now: Any, may_change: Collection[str]) -> None:
    """Raise if settings differ in more than ``may_change``, dotted names of fields or of groups."""
    for name in changed(before, now):
        groups = {name.rsplit(".", n)[0] for n in range(name.count(".") + 1)}
        if not groups & set(may_change):
            raise DiscorlError(
                f"{name} cannot change when a run is resumed: leave it as it was in {folder}, or "
                "start a new run"
            )


def changed(before: Any, now: Any, prefix: str = "") -> list[str]:
    """The dotted names of the fields in which two settings of the same kind differ."""
    if before == now:
        return []
    if type(before) is not type(now) or not dataclasses.is_dataclass(now):
        return [prefix]
    return [
        name
        for f in dataclasses.fields(now)
        for name in changed(
            getattr(before, f.name),
            getattr(now, f.name),
            f"{prefix}.{f.name}" if prefix else f.name,
        )
    ]
