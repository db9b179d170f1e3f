"""The same command lines give the same bits as when they were recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.compatibility.digests import CASES, check

PARAMS = [
    pytest.param(name, marks=getattr(pytest.mark, case.mark) if case.mark else ())
    for name, case in CASES.items()
]


@pytest.mark.parametrize("name", PARAMS)
def test_the_same_bits(name: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if needed := CASES[name].needs:
        pytest.importorskip(needed)
    monkeypatch.chdir(tmp_path)
    check(name)
