"""What is published: the public names, the wheel and the source package."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email.message import Message
from pathlib import Path

import pytest

import discorl
from tests.builders import run_python

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAME = f"discorl-{PROJECT['version']}"


def test_the_public_names_are_there() -> None:
    """Those that are imported when they are first asked for, too."""
    assert set(discorl.__all__) <= set(dir(discorl))
    for name in discorl.__all__:
        assert getattr(discorl, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'tran'"):
        _ = discorl.tran  # pyright: ignore[reportAttributeAccessIssue]


def test_importing_the_package_does_not_import_the_programs() -> None:
    code = """
import sys, discorl
heavy = {"gymnasium", "matplotlib", "discorl.training.train", "discorl.discovery.discover"}
print(sorted(heavy & set(sys.modules)))
discorl.train, discorl.discover
print(sorted(heavy & set(sys.modules)))
"""
    done = run_python("-c", code, env={"PYTHONPATH": str(ROOT)})
    before, after = done.stdout.splitlines()
    assert before == "[]"
    assert "discorl.discovery.discover" in after and "discorl.training.train" in after


def test_the_image_is_made_from_what_is_there() -> None:
    """It cannot be built here. What it copies exists and is let through; it ends without rights."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    allowed = (ROOT / ".dockerignore").read_text().split()
    copied = [line.split()[1:-1] for line in lines if re.match("COPY (?!--from)", line)]
    assert copied
    for name in (name for names in copied for name in names):
        assert (ROOT / name).exists() and f"!{name}" in allowed, name
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users and users[-1] != "root"
    extras = PROJECT["optional-dependencies"]
    asked = re.findall(r"/src\[(.*?)\]", "\n".join(lines))
    assert asked and set(asked[0].split(",")) <= extras.keys()


def test_the_changelog_and_the_citation_are_of_this_version() -> None:
    changes, citation = ((ROOT / name).read_text() for name in ("CHANGELOG.md", "CITATION.cff"))
    versions = re.findall(r"^## (\S+) - (\S+)$", changes, re.MULTILINE)
    cited = dict(re.findall(r"^([\w-]+): (\S+)$", citation, re.MULTILINE))
    assert versions[0] == (PROJECT["version"], cited["date-released"])
    assert cited["version"] == PROJECT["version"]
    assert cited["license"] == PROJECT["license"]


def test_the_public_host_runs_what_ci_runs() -> None:
    steps = re.findall(r"^make .+$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert "make test" in steps
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    assert re.findall(r"- run: (make .+)$", workflow, re.MULTILINE) == steps


def test_the_files_for_the_public_host_are_yaml() -> None:
    yaml = pytest.importorskip("yaml", reason="needs pip install 'discorl[dev]'")
    found = [*(ROOT / ".github").rglob("*.yml"), ROOT / "CITATION.cff"]
    assert len(found) > 5
    for path in found:
        assert isinstance(yaml.safe_load(path.read_text()), dict), path


def build(source: Path, kind: str, out: Path) -> Path:
    """The package of this kind, built by the back end that pyproject.toml names."""
    pytest.importorskip("hatchling", reason="needs pip install 'discorl[dev]'")
    done = run_python("-m", "hatchling", "build", "-t", kind, "-d", out, cwd=source)
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source package, as someone who downloads it sees it."""
    folder = tmp_path_factory.mktemp("sdist")
    sdist = build(ROOT, "sdist", folder)
    assert sdist.name == f"{NAME}.tar.gz"
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / NAME


def files_below(folder: Path) -> set[str]:
    return {
        path.relative_to(folder.parent).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    assert wheel.name == f"{NAME}-py3-none-any.whl"
    names = set(contents(wheel))
    info = {name for name in names if name.startswith(f"{NAME}.dist-info/")}
    assert names - info == files_below(ROOT / "discorl")
    for name in ("py.typed", "data/disco-mini.npz", "comparison/assets/report.html"):
        assert f"discorl/{name}" in names
    assert {f"{NAME}.dist-info/licenses/{name}" for name in ("LICENSE", "NOTICE")} <= info


def metadata(wheel: Path) -> Message:
    return email.message_from_bytes(contents(wheel)[f"{NAME}.dist-info/METADATA"])


def test_the_metadata_says_what_an_index_wants_to_know(wheel: Path) -> None:
    found = metadata(wheel)
    assert (found["Name"], found["Version"]) == ("discorl", PROJECT["version"])
    assert found["License-Expression"] == "Apache-2.0"
    assert found.get_all("License-File") == ["LICENSE", "NOTICE"]
    assert found["Requires-Python"] == ">=3.11"
    assert found["Description-Content-Type"] == "text/markdown"
    assert found.get_payload() == (ROOT / "README.md").read_text()
    required = [x for x in found.get_all("Requires-Dist", []) if "extra ==" not in x]
    assert len(required) == len(PROJECT["dependencies"])
    assert set(found.get_all("Provides-Extra", [])) == {
        extra.replace("_", "-") for extra in PROJECT["optional-dependencies"]
    }
    scripts = contents(wheel)[f"{NAME}.dist-info/entry_points.txt"].decode()
    assert "discorl = discorl.cli:main" in scripts


def test_the_source_package_holds_what_the_tests_read(unpacked: Path) -> None:
    for folder in ("discorl", "tests", "examples", "docs", "benchmarks", ".github"):
        assert files_below(unpacked / folder) == files_below(ROOT / folder)
    for name in ("pyproject.toml", "Makefile", "constraints.txt", "mkdocs.yml", "NOTICE"):
        assert (unpacked / name).read_bytes() == (ROOT / name).read_bytes()
    assert not list(unpacked.rglob("disco_103*.npz")), "the public weights are not ours to publish"


def test_the_source_package_makes_the_same_wheel(
    wheel: Path, unpacked: Path, tmp_path: Path
) -> None:
    assert contents(build(unpacked, "wheel", tmp_path)) == contents(wheel)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel alone, and this interpreter's packages for what it needs.

    The folder of those packages comes last on the path and its own .pth files are not read, so that
    a discorl that is installed there, editable or not, is never found first.
    """
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    options = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")
    done = run_python("-m", "pip", "--python", python, "install", *options, wheel)
    assert done.returncode == 0, done.stderr
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (site / "borrowed.pth").write_text("\n".join(borrowed))
    return folder


def run_installed(installed: Path, script: str, *args: str, cwd: Path) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "DISCORL_"))}
    env |= {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(cwd / "cache")}
    done = subprocess.run(
        [installed / "bin" / script, *args],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=cwd,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(os.name == "nt", reason="its environments are laid out differently")
def test_the_installed_wheel_works(installed: Path, tmp_path: Path) -> None:
    """Trains with the rule that comes along, and writes a report with the assets that do."""
    code = "import discorl; print(discorl.__file__, discorl.__version__)"
    where, version = run_installed(installed, "python", "-c", code, cwd=tmp_path).split()
    assert Path(where).is_relative_to(installed)
    assert version == PROJECT["version"]

    assert "disco-mini" in run_installed(installed, "discorl", "rules", "list", cwd=tmp_path)
    options = ("--steps", "2", "--log-every", "1", "--out", "run")
    run_installed(installed, "discorl", "train", "catch:5x5", *options, cwd=tmp_path)
    assert (tmp_path / "run" / "agent.npz").exists()
    run_installed(installed, "discorl", "compare", "run", cwd=tmp_path)
    assert "</html>" in (tmp_path / "comparison.html").read_text()
