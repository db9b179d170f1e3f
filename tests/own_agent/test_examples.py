"""The examples about one's own agent and loop run, and are short."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.builders import run_python, write_small_rule

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def rule(tmp_path: Path) -> Path:
    return write_small_rule(tmp_path / "rule.npz")


@pytest.mark.parametrize("name", ["own_agent.py", "own_loop.py"])
def test_each_is_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) < 100


def run(name: str, *args: str | Path) -> str:
    done = run_python(EXAMPLES / name, *args, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert "nan" not in done.stdout
    return done.stdout


def test_own_agent(rule: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.pt", tmp_path / "second.pt"
    shown = run("own_agent.py", "--steps", "34", "--rule", rule, "--save", first)
    assert "step 34: catch rate " in shown
    run("own_agent.py", "--steps", "2", "--rule", rule, "--load", first, "--save", second)
    counters = torch.load(second, weights_only=True)["counters"]
    assert counters == {"grad_steps": 5, "acting_steps": 36}


def test_own_loop(rule: Path) -> None:
    assert "step 3: return " in run("own_loop.py", "--steps", "3", "--rule", rule)
