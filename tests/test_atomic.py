from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from discorl.atomic import atomic_file, remove_partial, write_atomically
from tests.builders import run_python

KILLED = """
import os, sys
from pathlib import Path
from discorl.atomic import atomic_file

with atomic_file(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), 9)
"""


def kill_while_writing(path: Path) -> Path:
    """What a process leaves that is killed while it writes ``path``."""
    before = set(path.parent.iterdir())
    assert run_python("-c", KILLED, path).returncode == -signal.SIGKILL
    (left,) = set(path.parent.iterdir()) - before
    assert left.read_bytes() == b"half"
    return left


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


def age(path: Path, hours: float) -> None:
    then = time.time() - hours * 3600
    os.utime(path, (then, then))


def test_what_a_killed_process_left_is_removed_a_day_later(tmp_path: Path) -> None:
    """By the next one that writes the same file; earlier, somebody might still be writing."""
    old, new = (kill_while_writing(tmp_path / "a.npz") for _ in range(2))
    others = kill_while_writing(tmp_path / "b.npz")
    age(old, 25)
    age(others, 25)
    write_atomically(tmp_path / "a.npz", b"whole")
    assert set(tmp_path.iterdir()) == {tmp_path / "a.npz", new, others}


@pytest.mark.parametrize(
    "name",
    [
        *(".a.npz.k3j4h5g6", ".a.npz.k3j4h5g6.discorl-tmp~", "a.npz.k3j4h5g6.discorl-tmp"),
        *(".a.npz.discorl-tmp", ".a.npz.K3J4H5G6.discorl-tmp", ".ab.npz.k3j4h5g6.discorl-tmp"),
    ],
)
def test_what_is_called_otherwise_stays(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    age(tmp_path / name, 1000)
    write_atomically(tmp_path / "a.npz", b"whole")
    remove_partial(tmp_path, r"a\.npz")
    assert (tmp_path / name).read_text() == "mine"


def test_only_files_are_removed_and_not_what_a_link_points_to(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / ".a.k3j4h5g6.discorl-tmp").symlink_to(tmp_path / "mine")
    (tmp_path / ".a.k3j4h5g7.discorl-tmp").mkdir()
    before = set(tmp_path.iterdir())
    remove_partial(tmp_path, "a")
    assert set(tmp_path.iterdir()) == before
    remove_partial(tmp_path / "gone", "a")  # nothing there, nothing to do
