"""Files of another user, without another user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

posix = pytest.mark.skipif(os.name != "posix", reason="Windows has no owners and modes like these")


def make_foreign(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``path`` belong to somebody else: the superuser can give it away, others become they."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
