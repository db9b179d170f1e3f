"""Where the package keeps what it can get or make again."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """The package's folder in the user's cache; it may not be there yet."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "discorl"
