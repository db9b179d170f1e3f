"""What discorl 0.1.0 wrote is read by this version, which goes on from it as 0.1.0 did."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.compatibility.record import assert_recorded
from tests.compatibility.v0_1 import make
from tests.compatibility.v0_1.agent import KINDS

FOLDER = Path(make.__file__).parent
LEFT_OUT = shutil.ignore_patterns("*.py", "__pycache__", "expected.json")
EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def _copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of that version in the working directory, where they can be written to."""
    shutil.copytree(FOLDER, tmp_path / "v0_1", ignore=LEFT_OUT)
    monkeypatch.chdir(tmp_path / "v0_1")


def check(found: Any, *path: str) -> None:
    expected = EXPECTED
    for part in path:
        expected = expected[part]
    assert_recorded(found, expected, EXPECTED["machine"])


TRAINED = [
    pytest.param(name, marks=pytest.mark.atari if name == "pong" else ()) for name in make.TRAIN
]


def need(name: str) -> None:
    if name == "pong":
        pytest.importorskip("ale_py")


def kept_lines(name: str) -> list[str]:
    """The metrics up to the checkpoint, which no one writes again."""
    (checkpoint,) = Path(name, "checkpoints").iterdir()
    step = int(checkpoint.stem.split("-")[1])
    lines = Path(name, "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if json.loads(line)["step"] <= step]


@pytest.mark.parametrize("name", TRAINED)
def test_training_goes_on(name: str) -> None:
    need(name)
    before = kept_lines(name)
    check(make.resumed("train", name, make.MORE), "resume", name)
    # With the seconds of that time: a run that began anew would have the same numbers else.
    assert before and Path(name, "metrics.jsonl").read_text().splitlines()[: len(before)] == before


@pytest.mark.parametrize("name", TRAINED)
def test_agents_play_the_same_episodes(name: str) -> None:
    need(name)
    check(make.evaluated(name), "evaluate", name)


def without_judgement(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in row.items() if not k.startswith(("held_out/", "validation"))}
        for row in rows
    ]


@pytest.mark.parametrize("name", make.DISCOVER)
def test_discovery_goes_on(name: str) -> None:
    """Held-out tasks are left out: rules are judged in another way today, and the best is kept."""
    before = kept_lines(name)
    found = make.resumed("discover", name, make.MORE_META)
    has_best = found.pop("best.npz", None) is not None
    has_score = any("validation" in row for row in found["metrics.jsonl"])
    assert has_best == has_score == (name == "discover-plain")
    expected = EXPECTED["resume"][name]
    expected = expected | {"metrics.jsonl": without_judgement(expected["metrics.jsonl"])}
    found |= {"metrics.jsonl": without_judgement(found["metrics.jsonl"])}
    assert_recorded(found, expected, EXPECTED["machine"])
    assert before and Path(name, "metrics.jsonl").read_text().splitlines()[: len(before)] == before


def test_runs_are_compared() -> None:
    """All but the curves, which 0.1.0 cut off where the shortest run ends."""
    found = without_curves(make.compared() | {"version": "0.1.0"})  # it says which one compared
    expected = without_curves(EXPECTED["compare"])
    assert {"score", "area", "seconds"} <= expected["tasks"][0]["groups"][0].keys()
    assert_recorded(found, expected, EXPECTED["machine"])


def without_curves(content: Any) -> Any:
    if isinstance(content, list):
        return [without_curves(x) for x in content]
    if not isinstance(content, dict):
        return content
    curves = ("by_steps", "by_seconds", "points")
    return {k: without_curves(x) for k, x in content.items() if k not in curves}


@pytest.mark.parametrize("path", make.RULES)
def test_rules_are_read(path: str) -> None:
    check(make.rule_record(path), "rule", path)


@pytest.mark.parametrize("kind", KINDS)
def test_trainers_go_on(kind: str) -> None:
    check(make.trained_on(kind), "trainer", kind)
