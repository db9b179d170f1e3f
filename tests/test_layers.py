"""Imports only point up the list of layers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import discorl

PACKAGE = Path(discorl.__file__).parent
LAYERS = [
    "errors",
    "bounds",
    "bounded",
    "npz",
    "printable",
    "suggestions",
    "option_marks",
    "atomic",
    "cache",
    "types",
    "tree",
    "ops",
    "nets",
    "optim",
    "envs",
    "rules",
    "agents",
    "meta",
    "runs",
    "comparison",
    "deploy",
    "training",
    "tuning",
    "discovery",
    "analysis",
    "own_agent",
    "sharing",
    "cli",
]
MODULES = sorted(
    p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE or not p.stem.startswith("__")
)


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Modules that a file imports, anywhere in it; ``from a import b`` counts as ``a.b``."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_there_is_something_to_check() -> None:
    assert len(MODULES) > 30
    assert "discorl.types.Rollout" in imports(PACKAGE / "agents" / "update.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_up(path: Path) -> None:
    here = layer_of(path)
    assert here in LAYERS, f"{here} has no place in the list of layers"
    for name in imports(path):
        if name.startswith("discorl.") and name != "discorl.__version__":
            there = name.split(".")[1]
            assert LAYERS.index(there) <= LAYERS.index(here), f"{here} imports {name}"


def users_of(*prefixes: str) -> set[str]:
    return {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(name.startswith(prefixes) for name in imports(path))
    }


def test_one_user_of_tyro() -> None:
    assert {path.split("/")[0] for path in users_of("tyro")} == {"cli"}


def test_one_user_of_pytree() -> None:
    assert users_of("torch.utils._pytree", "torch.utils.pytree") == {"tree.py"}


def test_nothing_unpickles() -> None:
    assert users_of("pickle", "joblib", "torch.load", "torch.serialization") == set()
    for path in PACKAGE.rglob("*.py"):
        assert "allow_pickle=True" not in path.read_text()
        assert "torch.load(" not in path.read_text()
