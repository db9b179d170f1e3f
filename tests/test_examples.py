"""The examples run as scripts, with tiny budgets; the notebook runs from top to bottom."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from tests.builders import run_python, write_small_rule

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
NOTEBOOK = EXAMPLES / "quickstart.ipynb"


@pytest.fixture
def rule(tmp_path: Path) -> Path:
    return write_small_rule(tmp_path / "rule.npz")


def run(name: str, *args: object, cwd: Path | None = None) -> str:
    words = [str(arg) for arg in args]
    done = run_python(EXAMPLES / name, *words, env={"PYTHONPATH": str(ROOT)}, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_each_is_short_and_says_how_to_run_it(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) < 100
    assert f"python examples/{path.name}" in text.split('"""')[1]


def test_train_cartpole_evaluate_and_deploy(rule: Path, tmp_path: Path) -> None:
    """The later examples take what the first leaves."""
    out = tmp_path / "run"
    shown = run("train_cartpole.py", "--rule", rule, "--steps", 5, "--num-envs", 16, "--out", out)
    assert "last logged return" in shown
    assert (out / "agent.npz").exists()

    shown = run("evaluate_agent.py", out, "--episodes", 2, "--task", "gym:CartPole-v1")
    assert "an agent for gym:CartPole-v1" in shown
    assert "one episode: actions [" in shown

    shown = run("deploy_agent.py", out, cwd=tmp_path)
    assert "episode 2: return " in shown
    assert (tmp_path / "policy.pt2").exists()


def test_own_torso(rule: Path) -> None:
    shown = run("own_torso.py", "--rule", rule, "--steps", 33)
    assert "step 33: catch rate " in shown
    assert "nan" not in shown


def test_own_agent(rule: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.pt", tmp_path / "second.pt"
    shown = run("own_agent.py", "--steps", 34, "--rule", rule, "--save", first)
    assert "step 34: catch rate " in shown
    assert "nan" not in shown
    run("own_agent.py", "--steps", 2, "--rule", rule, "--load", first, "--save", second)
    counters = torch.load(second, weights_only=True)["counters"]
    assert counters == {"grad_steps": 5, "acting_steps": 36}


def test_own_loop(rule: Path) -> None:
    shown = run("own_loop.py", "--steps", 3, "--rule", rule)
    assert "step 3: return " in shown
    assert "nan" not in shown


def test_compare_rules(rule: Path, tmp_path: Path) -> None:
    options = ("--steps", 20, "--batch-size", 4, "--seeds", 0, 1, "--out", tmp_path / "runs")
    shown = run("compare_rules.py", "--rules", rule, "actor-critic", *options)
    assert "actor-critic on catch" in shown
    assert "(2 seeds)" in shown
    assert "</html>" in (tmp_path / "runs" / "comparison.html").read_text()


def test_discover_tiny(tmp_path: Path) -> None:
    out = tmp_path / "found"
    options = ("--steps", 1, "--updates", 1, "--num-envs", 4, "--train-steps", 2)
    shown = run("discover_tiny.py", *options, "--out", out)
    assert "held-out returns after 1 meta-steps: {'held_out/catch:6x6':" in shown
    assert "return on catch:6x6: " in shown
    assert (out / "rule.npz").exists()


def test_the_notebook_is_kept_with_its_outputs() -> None:
    """Of one run from top to bottom; 'make notebook' makes them."""
    text = NOTEBOOK.read_text()
    assert len(text) < 200_000
    code = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    kinds = [output["output_type"] for cell in code for output in cell["outputs"]]
    assert all(cell["outputs"] for cell in code) and "error" not in kinds
    shown = str([cell["outputs"] for cell in code])
    assert "image/png" in shown
    assert "/home/" not in shown and "/tmp/" not in shown, "the folders of whoever ran it"


def test_the_notebook_installs_what_colab_lacks() -> None:
    """Before anything else; nothing in it reads a file of this repository."""
    code = ["".join(c["source"]) for c in json.loads(NOTEBOOK.read_text())["cells"]]
    first = next(text for text in code if "import" in text)
    assert "%pip install --quiet discorl" in first and "find_spec" in first
    assert not any("../" in text for text in code if "import" in text)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's own packages
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that fails raises here; what it wrote goes to a folder of the test's."""
    nbformat = pytest.importorskip("nbformat", reason="needs pip install 'discorl[docs]'")
    nbclient = pytest.importorskip("nbclient", reason="needs pip install 'discorl[docs]'")
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.setenv("DISCORL_QUICKSTART_STEPS", "20")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=resources).execute()
    shown = str([cell.get("outputs") for cell in notebook.cells])
    assert "image/png" in shown
