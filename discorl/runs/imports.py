"""What a run's folder may have imported: a module that its config.json names, never one of its own.

A folder from elsewhere would otherwise bring the code that it names along.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from discorl.cache import is_trusted
from discorl.envs.named_code import check_makes_environments
from discorl.envs.registry import imported_module, is_function
from discorl.errors import DiscorlError


@contextmanager
def importing_for(folder: Path, task: str, wrappers: Sequence[str] = ()) -> Iterator[None]:
    """Around making the environment of the run in ``folder``, as its config.json names it.

    Raises if the names import something and another user wrote them, or if they call a function
    that is not there to make environments.
    """
    functions = [name for name in (task, *wrappers) if name in wrappers or is_function(name)]
    modules = [*filter(None, [imported_module(task)]), *(w.partition(":")[0] for w in wrappers)]
    for module in modules[:1]:
        _check_writer(folder, module)
    with _without_current(folder):
        try:
            for name in functions:
                check_makes_environments(name)
            yield
        except DiscorlError:
            for module in modules:
                if module not in sys.modules and _is_in(folder, module):
                    raise DiscorlError(
                        f"the module '{module}' is in {folder}, but nothing is imported from a "
                        "run's own folder: put it elsewhere, and that folder on PYTHONPATH"
                    ) from None
            raise


def _check_writer(folder: Path, module: str) -> None:
    try:
        file = (folder / "config.json").stat()
    except OSError as e:
        raise DiscorlError(f"cannot read {folder / 'config.json'}: {e.strerror}") from None
    if not is_trusted(file.st_uid):
        raise DiscorlError(
            f"another user wrote {folder}, and to make its environment it imports the module "
            f"'{module}': if you trust that, use a copy (cp -r), which is then yours"
        )


@contextmanager
def _without_current(folder: Path) -> Iterator[None]:
    """Python does not look for modules in the current folder, if that is in ``folder``."""
    here = Path.cwd()
    hidden = [
        (place, entry)
        for place, entry in enumerate(sys.path)
        if here.is_relative_to(folder.resolve()) and Path(entry).resolve() == here
    ]
    for _, entry in hidden:
        sys.path.remove(entry)
    try:
        yield
    finally:
        for place, entry in hidden:
            sys.path.insert(place, entry)


def _is_in(folder: Path, module: str) -> bool:
    top = folder / module.partition(".")[0]
    return top.is_dir() or top.with_suffix(".py").exists()
