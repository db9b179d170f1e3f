"""How the kernels in C++ are built, kept, and done without."""

from __future__ import annotations

from pathlib import Path

import pytest

from discorl.agents import compiled
from discorl.errors import DiscorlError
from discorl.ops import native
from tests.builders import run_python, small_agent, small_disco
from tests.compiler import needs_compiler


@needs_compiler
@pytest.mark.parametrize("setting", ["", "ONEDNN_MAX_CPU_ISA=AVX2"])
def test_products_on_processors_with_less(setting: str) -> None:
    """Torch refuses to multiply by oneDNN on some, which must not end a run."""
    code = (
        "import torch; from discorl.ops import native; native.build();"
        "a, b = torch.randn(40, 50), torch.randn(50, 60);"
        "print(bool(torch.allclose(torch.ops.discorl.mm(a, b), a @ b, atol=1e-4)))"
    )
    done = run_python("-c", code, env=dict([setting.split("=")]) if setting else {})
    assert done.stdout.strip() == "True", done.stderr


BUILD = "from discorl.ops import native; native.build(); print('built')"


@needs_compiler
def test_compiled_once_and_kept(tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    assert "built" in run_python("-c", BUILD, env=env).stdout
    (library,) = (tmp_path / "discorl").iterdir()
    made = library.stat().st_mtime_ns
    assert "built" in run_python("-c", BUILD, env=env).stdout
    assert [f.stat().st_mtime_ns for f in (tmp_path / "discorl").iterdir()] == [made]
    library.write_bytes(b"no library")
    assert "built" in run_python("-c", BUILD, env=env).stdout, "what cannot be loaded is made again"


def test_a_compiler_that_fails_leaves_no_file(tmp_path: Path) -> None:
    failed = run_python("-c", BUILD, env={"XDG_CACHE_HOME": str(tmp_path), "CXX": "false"})
    assert failed.returncode
    assert "false could not compile the kernels" in failed.stderr
    assert list((tmp_path / "discorl").iterdir()) == []


def test_a_compiler_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    with pytest.raises(DiscorlError, match="CXX names no-such-compiler -O1, which is not there"):
        native.compiler()
    monkeypatch.setenv("CXX", '"g++')
    with pytest.raises(DiscorlError, match="no command"):
        native.compiler()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DiscorlError, match="no C\\+\\+ compiler was found"):
        native.compiler()


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "discorl").write_text("a file where the folder should be")
    failed = run_python("-c", BUILD, env={"XDG_CACHE_HOME": str(tmp_path), "CXX": "true"})
    assert "DiscorlError: cannot save or load the kernels" in failed.stderr


def test_goes_on_without_kernels_that_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise DiscorlError("no C++ compiler was found")

    monkeypatch.setattr(compiled, "_compiler_works", lambda: True)
    monkeypatch.setattr(compiled.torch, "compile", lambda fn: fn)
    monkeypatch.setattr(native, "build", fails)
    with pytest.warns(UserWarning, match="running without the CPU kernels: no C"):
        agent = compiled.compile_agent(small_agent(small_disco()))
    assert not agent.native
