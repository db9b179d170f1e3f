"""Files that never end, never answer or are too large are refused before they are read."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from discorl.bounded import Unreadable, open_regular, parse_json, read_bytes
from discorl.errors import DiscorlError
from discorl.rules.store import load_rule, sha256
from discorl.runs.checkpoint import CheckpointFolder, DamagedFile, load, save
from discorl.runs.config_file import read_config_file
from discorl.runs.files import load_params

READERS: dict[str, Callable[[Path], Any]] = {
    "bytes": lambda path: read_bytes(path, 100),
    "rule": load_rule,
    "sha256": sha256,
    "agent": load_params,
    "checkpoint": load,
    "configuration": lambda path: read_config_file(path.parent),
}


def finished(read: Callable[[Path], Any], path: Path) -> Exception | None:
    """What reading raises; a reader that hangs fails the test instead of holding it up."""
    raised: list[Exception] = []

    def attempt() -> None:
        try:
            read(path)
        except Exception as e:
            raised.append(e)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "it hangs"
    return raised[0] if raised else None


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["pipe", "device", "link to a device", "folder"])
def test_only_regular_files_are_read(kind: str, reader: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device" and reader == "configuration":
        pytest.skip("its name is fixed")
    elif kind == "device":
        path = Path("/dev/zero")
    else:
        path.symlink_to("/dev/zero")
    error = finished(READERS[reader], path)
    assert isinstance(error, DiscorlError)
    assert "\n" not in str(error)
    assert ("folder" if kind == "folder" else "a device or a pipe") in str(error)


def test_links_to_files_are_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_bytes(tmp_path / "link", 7) == b"content"


def test_no_more_is_read_than_allowed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345678")
    assert read_bytes(path, 8) == b"12345678"
    with pytest.raises(Unreadable, match="too large"), open_regular(path, 7):
        pass


def test_files_that_hide_their_size_are_bounded_too() -> None:
    with pytest.raises(Unreadable, match="too large"):
        read_bytes(Path("/proc/self/smaps"), 10)


@pytest.mark.parametrize("reader", ["bytes", "rule", "agent", "checkpoint"])
def test_names_that_no_file_can_have(reader: str) -> None:
    with pytest.raises(DiscorlError):
        READERS[reader](Path("a\0b.npz"))


def test_a_huge_configuration_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(2**40)  # takes no space
    with pytest.raises(DiscorlError, match="too large"):
        read_config_file(tmp_path)


def test_a_checkpoint_that_is_a_pipe_is_passed_over(tmp_path: Path) -> None:
    save(tmp_path / "checkpoint-1.dc", {"a": 1})
    os.mkfifo(tmp_path / "checkpoint-2.dc")
    with pytest.raises(DamagedFile):
        load(tmp_path / "checkpoint-2.dc")
    with pytest.warns(UserWarning, match="pipe"):
        found = CheckpointFolder(tmp_path).latest()
    assert found is not None
    assert found.step == 1


@pytest.mark.parametrize(
    "text",
    [
        *(b"[" * 100_000, b"[" * 101 + b"]" * 101, b'{"a":' * 101 + b"1" + b"}" * 101),
        *(b"9" * 10_000, b"", b"\xff", b'"\xed\xa0\x80"', b"{", b"[1 2]"),
    ],
    ids=lambda text: str(text[:8]),
)
def test_json_that_is_none_or_too_deep(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_json_as_deep_as_allowed() -> None:
    assert parse_json(b"[" * 100 + b"]" * 100)[0]
    assert parse_json(b'\xef\xbb\xbf{"a": [1, null]}') == {"a": [1, None]}
    assert parse_json(b"null") is None
