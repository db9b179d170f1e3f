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
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from discorl.errors import DiscorlError
from discorl.runs.tree_file import DamagedFile, from_bytes, load, save, to_bytes

__all__ = [
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
    """What ``load`` returned in the classes of ``template``, its tensors on the template's devices.

    The template says which entries there are and of what shapes; its values are not used. An error
    names the entry that does not fit.
    """
    return _restore(template, loaded, where)


def _restore(template: Any, loaded: Any, where: str) -> Any:
    def misfit(what: str) -> DiscorlError:
        return DiscorlError(f"the checkpoint does not fit this run: {where or 'it'} {what}")

    def many(templates: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(loaded, dict):
            raise misfit(f"is {_kind(loaded)}, not a group of {', '.join(templates)}")
        if missing := sorted(templates.keys() - loaded.keys()):
            raise misfit(f"lacks {', '.join(missing)}")
        if extra := sorted(loaded.keys() - templates.keys()):
            raise misfit(f"has {', '.join(extra)}, which nothing here takes")
        return {
            k: _restore(t, loaded[k], f"{where}.{k}" if where else k) for k, t in templates.items()
        }

    loaded = _in_todays_names(template, loaded)
    if isinstance(template, Tensor):
        if not isinstance(loaded, Tensor):
            raise misfit(f"is {_kind(loaded)}, not a tensor")
        if loaded.shape != template.shape or loaded.dtype != template.dtype:
            raise misfit(
                f"is {loaded.dtype} {list(loaded.shape)}, "
                f"not {template.dtype} {list(template.shape)}"
            )
        return loaded.to(template.device)
    if isinstance(template, torch.Generator):
        try:
            restored = torch.Generator(device=template.device)
            restored.set_state(loaded)
        except (RuntimeError, TypeError) as e:
            raise misfit(f"is not the state of a random generator ({e})") from None
        return restored
    if isinstance(template, dict):
        return many(template)
    if isinstance(template, tuple) and hasattr(template, "_fields"):
        return type(template)(**many(template._asdict()))  # pyright: ignore
    if dataclasses.is_dataclass(template) and not isinstance(template, type):
        fields = {f.name: getattr(template, f.name) for f in dataclasses.fields(template)}
        return dataclasses.replace(template, **many(fields))
    if isinstance(template, list | tuple):
        if type(loaded) is not type(template) or len(loaded) != len(template):
            raise misfit(f"is {_kind(loaded)}, not {_kind(template)}")
        items = [_restore(t, x, f"{where}[{i}]") for i, (t, x) in enumerate(zip(template, loaded))]
        return type(template)(items)
    if isinstance(template, np.ndarray):
        if (
            not isinstance(loaded, np.ndarray)
            or loaded.dtype != template.dtype
            or loaded.shape != template.shape
        ):
            raise misfit(f"is {_kind(loaded)}, not {_kind(template)}")
        return loaded
    if type(loaded) is not type(template):
        raise misfit(f"is {_kind(loaded)}, not {_kind(template)}")
    return loaded


def _in_todays_names(template: Any, loaded: Any) -> Any:
    """Fields by the names that they have now; those of a named tuple may come without names."""
    names = getattr(template, "_fields", ())
    if names and isinstance(loaded, tuple) and len(loaded) == len(names):
        return dict(zip(names, loaded, strict=True))
    former = getattr(template, "FORMER_NAMES", {})
    if former and isinstance(loaded, dict):
        return {former.get(name, name): x for name, x in loaded.items()}
    return loaded


def _kind(x: Any) -> str:
    """What an entry is, in a few words."""
    if isinstance(x, list | tuple):
        return f"a {type(x).__name__} of {len(x)}"
    if isinstance(x, np.ndarray):
        return f"an array {x.dtype} {list(x.shape)}"
    return "None" if x is None else f"of type {type(x).__name__}"


class Loaded(NamedTuple):
    """A checkpoint that was found, with its tree as ``load`` returns it."""

    step: int
    path: Path
    content: Any


class CheckpointFolder:
    """The last ``keep`` checkpoints of a run, as ``checkpoint-<step>.dc``."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        if keep < 1:
            raise DiscorlError(f"keep at least 1 checkpoint, not {keep}")
        self.folder = folder
        self.keep = keep

    def path(self, step: int) -> Path:
        """The file of a step."""
        return self.folder / f"checkpoint-{step}.dc"

    def steps(self) -> list[int]:
        """The steps there are files for, oldest first."""
        if not self.folder.is_dir():
            return []
        matches = (re.fullmatch(r"checkpoint-(\d+)\.dc", p.name) for p in self.folder.iterdir())
        return sorted(int(m.group(1)) for m in matches if m)

    def save(self, step: int, content: Any) -> Path:
        """Write the checkpoint of ``step``, then remove what is too old."""
        path = self.path(step)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise DiscorlError(f"cannot make the folder {self.folder}: {e.strerror}") from None
        save(path, content)
        # Files of later steps belong to a course that was given up; they would pass for the newest.
        for other in self.steps():
            if other > step:
                self.path(other).unlink(missing_ok=True)
        for old in self.steps()[: -self.keep]:
            self.path(old).unlink(missing_ok=True)
        return path

    def latest(self) -> Loaded | None:
        """The newest checkpoint that is whole, or None if there are no checkpoints at all.

        Damaged ones are passed over with a warning. If all are damaged, that is an error.
        """
        steps = self.steps()
        for step in reversed(steps):
            path = self.path(step)
            try:
                return Loaded(step, path, load(path))
            except DamagedFile as e:
                warnings.warn(f"{e}; taking the checkpoint before it", stacklevel=2)
        if steps:
            raise DiscorlError(f"all checkpoints in {self.folder} are damaged: start the run anew")
        return None
