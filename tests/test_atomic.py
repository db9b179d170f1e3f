from __future__ import annotations

import os
from pathlib import Path

import pytest

from discorl.atomic import atomic_file, write_atomically


def test_the_file_appears_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with atomic_file(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"


def test_a_failing_block_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomically(path, b"old")
    with pytest.raises(TypeError), atomic_file(path) as file:
        file.write("not bytes")  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_others_may_read_it_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_atomically(tmp_path / "a", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644
