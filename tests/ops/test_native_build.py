"""How the kernels in C++ are built, kept, and done without."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from discorl.cli import main
from discorl.errors import DiscorlError
from discorl.ops.native import library as kernel_library
from tests.builders import run_python
from tests.compiler import copying_compiler, needs_compiler
from tests.foreign import make_foreign, posix

BUILD = "from discorl.ops import native; native.build(); print('built')"


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    """The folder of the kernels in a cache of this test."""
    return tmp_path / "discorl" / "kernels"


def build(kernels: Path, **env: str) -> str:
    """What a process that needs the kernels says."""
    done = run_python("-c", BUILD, env={"XDG_CACHE_HOME": str(kernels.parents[1])} | env)
    return f"{done.stdout}{done.stderr}exit {done.returncode}"


@needs_compiler
def test_compiled_once_and_kept(kernels: Path) -> None:
    assert "built" in build(kernels)
    (library,) = kernels.iterdir()
    assert library.stem.endswith(hashlib.sha256(library.read_bytes()).hexdigest())
    made = library.stat().st_mtime_ns
    assert "built" in build(kernels)
    assert [f.stat().st_mtime_ns for f in kernels.iterdir()] == [made]


@pytest.fixture
def copier(tmp_path: Path) -> str:
    return copying_compiler(tmp_path)


@posix
@needs_compiler
def test_another_copy_of_the_package_needs_no_other(
    kernels: Path, copier: str, tmp_path: Path
) -> None:
    assert "exit 0" in build(kernels, CXX=copier)
    moved = "from discorl.ops.native import library as l; from pathlib import Path; "
    moved += f"l.SOURCE = Path({str(tmp_path / 'rows.cpp')!r}); "
    done = run_python(
        "-c", moved + BUILD, env={"XDG_CACHE_HOME": str(kernels.parents[1]), "CXX": copier}
    )
    assert "built" in done.stdout and kernel_library.TOLD not in done.stderr
    assert len(list(kernels.iterdir())) == 1


@posix
@needs_compiler
def test_a_damaged_one_is_made_again(kernels: Path, copier: str) -> None:
    """The loader dies of a truncated library (SIGBUS) and of one full of zeros (SIGSEGV)."""
    assert "exit 0" in build(kernels, CXX=copier)
    (library,) = kernels.iterdir()
    whole = library.read_bytes()
    for damaged in (whole[:8192], whole[:4096] + bytes(len(whole) - 4096)):
        library.write_bytes(damaged)
        assert "exit 0" in build(kernels, CXX=copier)
        assert library.read_bytes() == whole


BOTH = """
echo > "$0.$$"
for wait in $(seq 600); do [ $(ls "$0".* | wc -l) = 2 ] && break; sleep 0.1; done
"""
"""In a compiler: it goes on when another one has started, too, or after a minute."""


@posix
@needs_compiler
def test_two_that_build_at_once_both_end_well(kernels: Path, tmp_path: Path) -> None:
    copier = copying_compiler(tmp_path, first=BOTH)
    with ThreadPoolExecutor() as pool:
        said = list(pool.map(lambda _: build(kernels, CXX=copier), range(2)))
    assert all("exit 0" in each and kernel_library.TOLD in each for each in said), said
    assert len(list(kernels.iterdir())) == 1


@posix
@needs_compiler
def test_only_waiting_is_announced(kernels: Path, copier: str) -> None:
    said = [build(kernels, CXX=copier) for _ in range(2)]
    assert [kernel_library.TOLD in each for each in said] == [True, False]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What was loaded, in place of loading it; what is made is always the same."""
    contents: list[bytes] = []
    monkeypatch.setattr(torch.ops, "load_library", lambda path: contents.append(path.read_bytes()))
    monkeypatch.setattr(kernel_library, "_compiled", lambda command: b"made")
    return contents


@pytest.mark.parametrize("damaged", [b"", b"mad", b"made!", b"mode", b"other"])
def test_nothing_damaged_is_ever_loaded(
    tmp_path: Path, damaged: bytes, loaded: list[bytes]
) -> None:
    kernel_library._load(tmp_path, "rows-key", [])
    (library,) = tmp_path.iterdir()
    library.write_bytes(damaged)
    (tmp_path / "rows-key-.so").write_bytes(damaged)
    kernel_library._load(tmp_path, "rows-key", [])
    assert loaded == [b"made", b"made"]
    assert library.read_bytes() == b"made"


@posix
def test_that_of_another_user_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: list[bytes]
) -> None:
    library = tmp_path / f"rows-key-{hashlib.sha256(b'theirs').hexdigest()}.so"
    library.write_bytes(b"theirs")
    kernel_library._load(tmp_path, "rows-key", [])
    make_foreign(library, monkeypatch)
    kernel_library._load(tmp_path, "rows-key", [])
    assert loaded == [b"theirs", b"made"]


def test_a_compiler_that_fails_leaves_no_file(kernels: Path) -> None:
    said = build(kernels, CXX="false")
    assert "false could not compile the kernels" in said and "exit 1" in said
    assert list(kernels.iterdir()) == []


def test_a_compiler_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    with pytest.raises(DiscorlError, match="CXX names no-such-compiler -O1, which was not found"):
        kernel_library.compiler()
    monkeypatch.setenv("CXX", '"g++')
    with pytest.raises(DiscorlError, match="not a command"):
        kernel_library.compiler()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(kernel_library.NoCompiler, match="no C\\+\\+ compiler was found"):
        kernel_library.compiler()


def test_a_cache_that_cannot_be_written(kernels: Path) -> None:
    kernels.parent.write_text("a file where the folder should be")
    assert "DiscorlError: cannot make" in build(kernels, CXX="true")


@posix
def test_a_cache_that_others_can_write_to(kernels: Path) -> None:
    kernels.mkdir(parents=True)
    kernels.chmod(0o777)
    assert "DiscorlError: other users can write to" in build(kernels, CXX="true")
    assert list(kernels.iterdir()) == []


@needs_compiler
def test_built_in_advance(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "build"]) == 0
    said = capsys.readouterr().out
    assert Path(said.removeprefix("ready: ").strip()).is_file()


@posix
@needs_compiler
def test_another_compiler_of_the_same_name_builds_its_own(kernels: Path, copier: str) -> None:
    assert "exit 0" in build(kernels, CXX=copier)
    script = Path(copier)
    script.write_text(script.read_text().replace("version 1", "version 2"))
    assert "exit 0" in build(kernels, CXX=copier)
    assert len({library.name[:21] for library in kernels.iterdir()}) == 2, "two keys"


@posix
def test_a_compiler_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_library, "MAX_SECONDS", 0.1)
    with pytest.raises(DiscorlError, match="sh did not end within"):
        kernel_library._compiled(["sh", "-c", "sleep 9"])


@posix
def test_a_compiler_that_cannot_be_run(tmp_path: Path) -> None:
    script = tmp_path / "compiler"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    with pytest.raises(DiscorlError, match="compiler cannot be run"):
        kernel_library._version((str(script),))
