"""Where the package keeps what it can get or make again, and what makes such a folder safe.

Code is loaded from here (compiled kernels, and what torch.compile pickled), so nobody else may be
able to write to it. Owners and modes are checked where they exist; Windows keeps a user's folders
private by other means.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from discorl.errors import DiscorlError

VARIABLE = "XDG_CACHE_HOME"


def user_cache() -> Path:
    """The package's folder in the user's cache, only by name: it is neither made nor checked."""
    return _root() / "discorl"


def private_cache(name: str = "") -> Path:
    """The package's cache, or the folder ``name`` in it: made if need be, and the user's alone."""
    ours = user_cache()
    private_folder(ours.parent, VARIABLE)  # whoever writes there can exchange what is below
    for folder in dict.fromkeys((ours, ours / name)):
        private_folder(folder, VARIABLE)
        with suppress(OSError):  # on a disk that cannot be written to it stays readable, no more
            folder.chmod(0o700)  # earlier versions let others read it
    return ours / name


def private_folder(folder: Path, variable: str) -> Path:
    """A folder from which code can be loaded, made if need be: only this user can write to it.

    ``variable`` is the one of the environment that chooses another folder.
    """
    if not folder.is_absolute():
        raise DiscorlError(f"{variable} is {folder}, which is not an absolute path: correct it")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()  # of what a link leads to
    except OSError as e:
        advice = f"set {variable} to a folder that you can write to"
        raise DiscorlError(f"cannot make {folder} ({e.strerror}): {advice}") from None
    if not is_trusted(found.st_uid):
        raise DiscorlError(
            f"{folder} belongs to another user, and code would be loaded from it: set {variable} "
            "to a folder of your own"
        )
    if os.name == "posix" and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise DiscorlError(
            f"other users can write to {folder}, and code would be loaded from it: set {variable} "
            f"to a folder of your own, or empty this one and run 'chmod go-w {folder}'"
        )
    return folder


def is_trusted(owner: int) -> bool:
    """Whether what belongs to this user id was written by this user, or by the superuser."""
    return os.name != "posix" or owner in (os.geteuid(), 0)


def _root() -> Path:
    if given := os.environ.get(VARIABLE):
        if not Path(given).is_absolute():
            raise DiscorlError(f"{VARIABLE} is {given}, which is not an absolute path: correct it")
        return Path(given)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        raise DiscorlError(f"there is no home folder for a cache: set {VARIABLE}") from None
