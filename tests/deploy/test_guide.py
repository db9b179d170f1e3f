"""The code in docs/deploy.md runs as it is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.deploy.agents import KINDS, trained

GUIDE = Path(__file__).parent.parent.parent / "docs" / "deploy.md"


def test_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trained(tmp_path / "runs" / "x", **KINDS["cartpole"])
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(blocks) == 6
    shared: dict[str, object] = {}
    for block in blocks:
        exec(block, shared)
    assert shared["memory"] == {}
