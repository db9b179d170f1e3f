"""The user's cache: private, or refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from discorl.cache import private_cache, private_folder, user_cache
from discorl.errors import DiscorlError
from tests.foreign import make_foreign, posix


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_to_look_makes_nothing(root: Path) -> None:
    assert user_cache() == root / "discorl"
    assert not root.exists()


@posix
def test_a_folder_of_its_own(root: Path) -> None:
    mask = os.umask(0)
    try:
        folder = private_cache("kernels")
    finally:
        os.umask(mask)
    assert folder == root / "discorl" / "kernels"
    assert [mode(path) for path in (root, root / "discorl", folder)] == [0o700] * 3
    assert private_cache("kernels") == folder
    assert private_cache() == root / "discorl"


@posix
def test_what_others_could_only_read_is_closed_to_them(root: Path) -> None:
    (root / "discorl").mkdir(parents=True)
    for path in (root, root / "discorl"):
        path.chmod(0o755)
    private_cache()
    assert mode(root / "discorl") == 0o700
    assert mode(root) == 0o755, "that one is not ours alone"


@posix
@pytest.mark.parametrize("bits", [0o775, 0o757, 0o1777], ids=oct)
@pytest.mark.parametrize("place", ["", "discorl", "discorl/kernels"])
def test_where_others_can_write_is_refused(root: Path, place: str, bits: int) -> None:
    private_cache("kernels")
    (root / place).chmod(bits)
    with pytest.raises(DiscorlError, match=rf"other users can write to .*{place}.*chmod go-w"):
        private_cache("kernels")


@posix
@pytest.mark.parametrize("place", ["", "discorl", "discorl/kernels"])
def test_what_belongs_to_another_user_is_refused(
    root: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    private_cache("kernels")
    make_foreign(root / place, monkeypatch)
    with pytest.raises(DiscorlError, match=r"belongs to another user.*set XDG_CACHE_HOME"):
        private_cache("kernels")


@posix
def test_a_link_is_as_good_as_what_it_leads_to(root: Path, tmp_path: Path) -> None:
    root.mkdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (root / "discorl").symlink_to(tmp_path / "elsewhere")
    assert private_cache() == root / "discorl"
    (tmp_path / "elsewhere").chmod(0o777)
    with pytest.raises(DiscorlError, match="other users can write"):
        private_cache()


def test_a_relative_path_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    for use in (user_cache, private_cache):
        with pytest.raises(DiscorlError, match="XDG_CACHE_HOME is cache, which is not an absolute"):
            use()
    with pytest.raises(DiscorlError, match="SOME_DIR is cache, which is not an absolute"):
        private_folder(Path("cache"), "SOME_DIR")
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_way(root: Path) -> None:
    root.write_text("")
    with pytest.raises(DiscorlError, match=r"cannot make .*set XDG_CACHE_HOME"):
        private_cache()


def test_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(DiscorlError, match="no home folder for a cache: set XDG_CACHE_HOME"):
        user_cache()
