"""The documentation keeps up with the code: what it names exists, and what exists is in it."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
from pathlib import Path
from typing import Any

import pytest

import discorl
from tests.builders import run_python

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
REFERENCE = "\n".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def find(name: str) -> Any:
    """The module or object with this dotted name."""
    parts = name.split(".")
    for i in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:i]))
        except ModuleNotFoundError:
            continue
        for part in parts[i:]:
            found = getattr(found, part)
        return found
    raise AttributeError(name)


@pytest.mark.parametrize("name", discorl.__all__)
def test_public_symbols_are_documented(name: str) -> None:
    assert inspect.getdoc(getattr(discorl, name))
    assert f"::: discorl.{name}\n" in REFERENCE


def test_the_reference_names_only_what_exists() -> None:
    listed = re.findall(r"^::: (\S+)$", REFERENCE, re.MULTILINE)
    assert len(listed) == len(set(listed)) > len(discorl.__all__)
    for name in listed:
        find(name)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for name in re.findall(r"\]\[(discorl[\w.]*)\]", text):
        find(name)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if target.startswith("http"):
            continue
        # The site shows the benchmarks beside the pages, see docs/_hooks.
        base = ROOT if target.startswith("benchmarks/") else page.parent
        assert (base / target).exists(), target
    assert "--8 <" not in text, "a formatter took the line that includes a file for Python"
    for target in re.findall(r'--8<-- "(.*)"', text):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_snippets_are_python_and_import_what_exists(page: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("discorl"):
                for alias in node.names:
                    find(f"{node.module}.{alias.name}")


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    """``--strict`` makes every warning an error: dead links, unknown names, pages left out."""
    pytest.importorskip("mkdocs", reason="needs pip install 'discorl[docs]'")
    pytest.importorskip("mkdocstrings", reason="needs pip install 'discorl[docs]'")
    env = {"NO_MKDOCS_2_WARNING": "1", "NO_COLOR": "1", "PYTHONPATH": os.getenv("PYTHONPATH", "")}
    site = tmp_path / "site"
    done = run_python("-m", "mkdocs", "build", "--strict", "-d", site, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert 'id="discorl.DiscoTrainer"' in (site / "reference" / "index.html").read_text()
