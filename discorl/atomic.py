"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

ENDING = ".discorl-tmp"
"""How the name of a file ends that is not whole yet."""
RANDOM = "[a-z0-9_]{8}"
"""What mkstemp puts into a name."""
ABANDONED_SECONDS = 24 * 3600


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of ``path`` when the block ends, and vanishes if it fails.

    A process that is killed cannot clean up: what it leaves of this file is removed by the next one
    that writes it, a day later at the earliest. Until then someone may still be writing.
    """
    handle, temporary = tempfile.mkstemp(ENDING, prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp lets only the owner read
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    remove_partial(path.parent, re.escape(path.name), ABANDONED_SECONDS)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace ``path`` in one step; it holds the old bytes or the new ones, never a mixture."""
    with atomic_file(path) as file:
        file.write(data)


def remove_partial(folder: Path, names: str, min_age: float | None = None) -> None:
    """Remove what killed processes left of the files in ``folder`` whose name matches ``names``.

    Without ``min_age``, in seconds, nobody else may be writing these files.
    """
    ours = re.compile(rf"\.(?:{names})\.{RANDOM}{re.escape(ENDING)}")
    for path, found in own_files(folder, ours):
        if min_age is None or time.time() - found.st_mtime >= min_age:
            with suppress(OSError):  # no reason to fail
                path.unlink()


def own_files(folder: Path, names: re.Pattern[str]) -> Iterator[tuple[Path, os.stat_result]]:
    """This user's regular files in ``folder`` that are called so."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            if names.fullmatch(entry.name):
                found = entry.stat(follow_symlinks=False)
                is_own = not hasattr(os, "getuid") or found.st_uid == os.getuid()
                if stat.S_ISREG(found.st_mode) and is_own:
                    yield Path(entry.path), found


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power cut, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        pass  # some network file systems cannot; the file itself is safe
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
