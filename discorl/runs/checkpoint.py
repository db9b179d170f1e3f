"""Checkpoints: a tree of everything that changes in a run, saved so that nothing can be lost.

save(path, content)             any tree, into one file, atomically
load(path)                      the tree back, in plain dicts and lists
restore(template, loaded)       the same in the template's own classes, checked entry by entry
CheckpointFolder(folder, keep)  the last few of them, by step
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from discorl.errors import DiscorlError
from discorl.runs.tree_file import (
    DamagedFile,
    below,
    from_bytes,
    load,
    named_parts,
    save,
    to_bytes,
)

__all__ = [
    "CheckpointConfig",
    "CheckpointFolder",
    "DamagedFile",
    "Loaded",
    "from_bytes",
    "load",
    "restore",
    "save",
    "to_bytes",
]

T = TypeVar("T")


def restore(template: T, loaded: Any, where: str = "") -> T:
    """What ``load`` returned, in the classes and on the devices of ``template``.

    The template gives the entries and their shapes; its values are not used. An error names the
    entry that does not fit.
    """
    x: Any = template
    loaded = _in_todays_names(x, loaded)
    if (parts := named_parts(x)) is not None:
        restored: Any = _restore_parts(parts, loaded, where)
        if isinstance(x, dict):
            return restored
        make: Any = type(x) if isinstance(x, tuple) else partial(dataclasses.replace, x)
        return make(**restored)
    if isinstance(x, torch.Generator):
        return _restore_generator(x, loaded, where)
    if _kind(loaded) != _kind(x):
        raise _misfit(where, f"is {_kind(loaded)}, not {_kind(x)}")
    if isinstance(x, list | tuple):
        pairs = enumerate(zip(x, loaded, strict=True))
        return type(x)([restore(t, part, f"{where}[{i}]") for i, (t, part) in pairs])  # pyright: ignore
    return loaded.to(x.device) if isinstance(x, Tensor) else loaded


def _restore_parts(parts: dict[str, Any], loaded: Any, where: str) -> dict[str, Any]:
    if not isinstance(loaded, dict):
        raise _misfit(where, f"is {_kind(loaded)}, not a group of {', '.join(parts)}")
    # What the template has as None may be missing: earlier versions did not know it.
    loaded = {name: None for name, part in parts.items() if part is None} | loaded
    if missing := sorted(parts.keys() - loaded.keys()):
        raise _misfit(where, f"lacks {', '.join(missing)}")
    if extra := sorted(loaded.keys() - parts.keys()):
        raise _misfit(where, f"has {', '.join(extra)}, which does not belong there")
    return {name: restore(t, loaded[name], below(where, name)) for name, t in parts.items()}


def _in_todays_names(template: Any, loaded: Any) -> Any:
    """Fields under their current names; those of a named tuple may come without names."""
    names = getattr(template, "_fields", ())
    if names and isinstance(loaded, tuple) and len(loaded) == len(names):
        return dict(zip(names, loaded, strict=True))
    former = getattr(template, "FORMER_NAMES", {})
    if former and isinstance(loaded, dict):
        return {former.get(name, name): x for name, x in loaded.items()}
    return loaded


def _restore_generator(template: torch.Generator, loaded: Any, where: str) -> Any:
    try:
        restored = torch.Generator(device=template.device)
        restored.set_state(loaded)
    except (RuntimeError, TypeError) as e:
        raise _misfit(where, f"is not the state of a random generator ({e})") from None
    return restored


def _misfit(where: str, what: str) -> DiscorlError:
    return DiscorlError(f"the checkpoint does not fit this run: {where or 'it'} {what}")


def _kind(x: Any) -> str:
    """What an entry is, in a few words that are the same for entries that fit each other."""
    if isinstance(x, Tensor):
        return f"{x.dtype} {list(x.shape)}"
    if isinstance(x, list | tuple):
        return f"a {type(x).__name__} of {len(x)}"
    if isinstance(x, np.ndarray):
        return f"an array {x.dtype} {list(x.shape)}"
    if isinstance(x, np.generic):
        return f"a NumPy scalar of type {x.dtype}"
    return "None" if x is None else f"of type {type(x).__name__}"


@dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints: everything --resume needs to continue a run bit for bit."""

    every_steps: int | None = None
    """Training steps between checkpoints; None to go by time only."""
    every_minutes: float | None = 10.0
    """Minutes between checkpoints. If this and --checkpoint.every-steps are both None, none are
    saved; otherwise one is also saved at the end and on Ctrl-C."""
    keep: int = 2
    """How many checkpoints to keep; older ones are deleted."""

    def __post_init__(self) -> None:
        for name in ("every_steps", "every_minutes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise DiscorlError(f"checkpoint: {name} must be above 0, or None")
        if self.keep < 1:
            raise DiscorlError(f"checkpoint: keep must be at least 1, not {self.keep}")

    @property
    def are_wanted(self) -> bool:
        """Whether any should be saved."""
        return self.every_steps is not None or self.every_minutes is not None

    def are_due(self, step: int, seconds: float) -> bool:
        """Whether it is time for the next one, ``seconds`` after the last."""
        by_steps = self.every_steps is not None and step % self.every_steps == 0
        by_time = self.every_minutes is not None and seconds >= self.every_minutes * 60
        return by_steps or by_time


class Loaded(NamedTuple):
    """A checkpoint that was found, with its tree as ``load`` returns it."""

    step: int
    path: Path
    content: Any
    is_diverged: bool = False
    """Whether it was saved because learning had gone wrong."""


class CheckpointFolder:
    """The last ``keep`` checkpoints of a run, as ``checkpoint-<step>.dc``.

    Besides those, ``checkpoint-<step>-diverged.dc`` is what was left when learning went wrong. It
    takes the place of no other, because what caused the trouble may be in it.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        if keep < 1:
            raise DiscorlError(f"keep at least 1 checkpoint, not {keep}")
        self.folder = folder
        self.keep = keep

    def path(self, step: int, is_diverged: bool = False) -> Path:
        """The file of a step."""
        return self.folder / f"checkpoint-{step}{'-diverged' if is_diverged else ''}.dc"

    def steps(self, is_diverged: bool = False) -> list[int]:
        """The steps that have a file of this kind, oldest first."""
        if not self.folder.is_dir():
            return []
        name = re.compile(rf"checkpoint-(\d+){'-diverged' if is_diverged else ''}\.dc")
        matches = (name.fullmatch(p.name) for p in self.folder.iterdir())
        return sorted(int(m.group(1)) for m in matches if m)

    def save(self, step: int, content: Any, is_diverged: bool = False) -> Path:
        """Write the checkpoint of ``step``, then remove those that it replaces."""
        path = self.path(step, is_diverged)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise DiscorlError(f"cannot create the folder {self.folder}: {e.strerror}") from None
        save(path, content)
        for other in self.steps(is_diverged=True):
            if not is_diverged or other != step:  # the run has found a way past it
                self.path(other, is_diverged=True).unlink(missing_ok=True)
        if is_diverged:
            return path
        # Files of later steps belong to an abandoned attempt; they would be taken for the newest.
        for other in self.steps():
            if other > step:
                self.path(other).unlink(missing_ok=True)
        self.prune()
        return path

    def prune(self) -> None:
        """Remove what is too old; a process that was killed may have left one too many."""
        for old in self.steps()[: -self.keep]:
            self.path(old).unlink(missing_ok=True)

    def latest(self, even_diverged: bool = False, without: Collection[str] = ()) -> Loaded | None:
        """The newest checkpoint that is whole, or None if there are no checkpoints at all.

        What diverged counts only if nothing else is there, or with ``even_diverged``. Damaged ones
        are skipped with a warning. It is an error if all of them are damaged. Parts whose name is
        in ``without`` are not loaded.
        """
        kept = [(step, bad) for bad in (True, False) for step in self.steps(bad)]
        if even_diverged:
            kept.sort(key=lambda one: (one[0], not one[1]))
        for step, is_diverged in reversed(kept):
            path = self.path(step, is_diverged)
            try:
                if (content := load(path, without)) is None:
                    raise DamagedFile(f"{path} holds nothing")
                return Loaded(step, path, content, is_diverged)
            except DamagedFile as e:
                warnings.warn(f"{e}; using the checkpoint before it", stacklevel=2)
        if kept:
            raise DiscorlError(f"all checkpoints in {self.folder} are damaged: start the run over")
        return None
