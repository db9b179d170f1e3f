"""A hub for the tests of sharing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sharing.stand_in import TOKEN, StandIn, serving


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """The stand-in, to which this process is logged in; it works in a folder of its own."""
    constants = pytest.importorskip("huggingface_hub.constants", reason="needs the extra 'hub'")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with serving() as server:
        # As HF_ENDPOINT would, which is read when the client is imported.
        template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        yield server
