"""Nobody else's files are loaded by torch.compile."""

from __future__ import annotations

import getpass
import os
import pickle
from pathlib import Path

import pytest

from discorl.agents.compiler_cache import VARIABLES, use_private_cache
from discorl.errors import DiscorlError
from tests.builders import run_python
from tests.compiler import needs_compiler
from tests.foreign import make_foreign, posix

TRY = """
from discorl.agents import compiled
from discorl.agents.compiler_cache import use_private_cache
{before}
problem = compiled._problem()
print(problem or "compiled")
"""


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch sets these for child processes once anything in this one has used its compiler."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


class Planted:
    """Whoever unpickles it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.marker,)


def compile_in(folder: Path, before: str = "use_private_cache()", **env: str) -> str:
    """What a new process that compiles says, with ``folder`` for its temporary files and cache."""
    own = {"TMPDIR": str(folder / "tmp"), "XDG_CACHE_HOME": str(folder / "cache")}
    done = run_python("-c", TRY.format(before=before), env=own | env)
    return done.stdout + done.stderr


WHERE = """
{before}
from discorl.agents.compiler_cache import use_private_cache
use_private_cache()
from torch._dynamo import pgo
from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
from torch._inductor import cache, codecache
from torch._inductor.codecache import FxGraphCache
from torch._inductor.runtime.cache_dir_utils import cache_dir, triton_cache_dir
print(cache_dir(), triton_cache_dir(0), FxGraphCache._get_tmp_dir(), sep="\\n")
print(AOTAutogradCache._get_tmp_dir(), pgo.code_state_path("key"), sep="\\n")
print(codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR, sep="\\n")
print(cache.InductorOnDiskCache().base_dir, codecache.default_cache_dir(), sep="\\n")
"""
"""Prints every folder from which torch loads what it compiled."""


@posix
@pytest.mark.parametrize("before", ["", "import torch._dynamo.package"], ids=["first", "later"])
def test_every_cache_of_torch_is_private(tmp_path: Path, before: str) -> None:
    """Also if something in the process has used torch.compile already."""
    (tmp_path / "tmp").mkdir()
    env = {"TMPDIR": str(tmp_path / "tmp"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = run_python("-c", WHERE.format(before=before), env=env)
    folders = done.stdout.split()
    assert len(folders) == 9, done.stderr
    private = tmp_path / "cache" / "discorl" / "inductor"
    assert [f for f in folders if not Path(f).is_relative_to(private)] == []
    assert before or not list((tmp_path / "tmp").iterdir())


@posix
@needs_compiler
@pytest.mark.slow
def test_what_somebody_planted_is_not_unpickled(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    predictable = tmp_path / "tmp" / f"torchinductor_{getpass.getuser()}"
    marker = tmp_path / "code was run"
    assert "compiled" in compile_in(tmp_path, before="")
    planted = [p for kind in ("fxgraph", "aotautograd") for p in predictable.glob(f"{kind}/**/*")]
    planted = [path for path in planted if path.is_file()]
    assert planted, "the attack needs something to replace"
    for path in planted:
        path.write_bytes(pickle.dumps(Planted(marker)))
    before = {path: path.stat().st_mtime_ns for path in predictable.rglob("*")}

    assert "compiled" in compile_in(tmp_path)
    assert not marker.exists()
    assert {path: path.stat().st_mtime_ns for path in predictable.rglob("*")} == before
    private = tmp_path / "cache" / "discorl" / "inductor"
    assert {"fxgraph", "aotautograd"} < {path.name for path in private.iterdir()}

    compile_in(tmp_path, before="")
    assert marker.exists(), "the attack works where nothing is done against it"


@pytest.fixture
def _own_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("discorl.agents.compiler_cache._replace_default", lambda private: None)
    for variable in VARIABLES:
        monkeypatch.setenv(variable, "")  # so that it is put back afterwards


@pytest.mark.usefixtures("_own_variables")
def test_the_users_own_folder_is_kept_if_it_is_private(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(own))
    use_private_cache()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(own)
    triton = tmp_path / "cache" / "discorl" / "inductor" / "triton"
    assert os.environ["TRITON_CACHE_DIR"] == str(triton)


@posix
@pytest.mark.usefixtures("_own_variables")
@pytest.mark.parametrize("variable", VARIABLES)
def test_the_users_own_folder_is_refused_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    monkeypatch.setenv(variable, "relative")
    with pytest.raises(DiscorlError, match=f"{variable} is relative, which is not an absolute"):
        use_private_cache()
    (tmp_path / "own").mkdir(mode=0o700)
    monkeypatch.setenv(variable, str(tmp_path / "own"))
    (tmp_path / "own").chmod(0o770)
    with pytest.raises(DiscorlError, match=f"other users can write to .*set {variable}"):
        use_private_cache()
    assert str(tmp_path / "own") not in [os.environ[v] for v in VARIABLES]
    monkeypatch.setenv(variable, str(tmp_path / "own"))
    (tmp_path / "own").chmod(0o700)
    make_foreign(tmp_path / "own", monkeypatch)
    with pytest.raises(DiscorlError, match="belongs to another user"):
        use_private_cache()


@pytest.mark.usefixtures("_own_variables")
def test_torchs_default_is_nobodys_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Torch sets the variables to it once something was compiled."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    default = tmp_path / f"torchinductor_{getpass.getuser()}"
    monkeypatch.setattr(
        "torch._inductor.runtime.cache_dir_utils.default_cache_dir", lambda: str(default)
    )
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(default))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(default / "triton" / "0"))
    use_private_cache()
    private = tmp_path / "cache" / "discorl" / "inductor"
    assert [os.environ[v] for v in VARIABLES] == [str(private), str(private / "triton")]
