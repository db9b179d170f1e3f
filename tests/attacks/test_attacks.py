"""A share of the attacks for the suite; ``make soak`` has the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attacks.conftest import TABLES

ROOT = Path(__file__).parents[2]
QUICK = {
    "corpus": None,
    "bomb-rule": None,
    "bomb-agent": None,
    "bomb-checkpoint": 3,
    "bomb-config": 9,
    "environment": 4,
    "crash": 1,
    "signal": 1,
    "ranks": 1,
    "fuzz": 20,
}
SLOW = {
    "bomb": None,
    "environment": 60,
    "crash": 15,
    "signal": 6,
    "ranks": 6,
    "fuzz": 200,
}
Results = dict[str, dict]


def attack(shares: dict[str, int | None], out: Path, config: pytest.Config) -> Results:
    """What became of each attack, by its name; the table is shown at the end of the tests."""
    chosen = [kind if count is None else f"{kind}={count}" for kind, count in shares.items()]
    command = [sys.executable, "-m", "tests.attacks", "--count", "1000", "--out", str(out)]
    done = subprocess.run(
        [*command, "--only", *chosen], cwd=ROOT, capture_output=True, text=True, timeout=3600
    )
    assert out.exists(), done.stdout + done.stderr
    table = done.stdout[done.stdout.rindex("\nattack ") + 1 :]
    config.stash.setdefault(TABLES, []).append(table)
    return {a["name"]: a for a in json.loads(out.read_text())["attacks"]}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Results:
    return attack(QUICK, tmp_path_factory.mktemp("attacks") / "quick.json", request.config)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Results:
    return attack(SLOW, tmp_path_factory.mktemp("attacks") / "slow.json", request.config)


def check(results: Results, kind: str) -> None:
    chosen = [a for name, a in results.items() if name == kind or name.startswith(f"{kind}-")]
    failures = [f"{x['what']}\n  again: {x['again']}" for a in chosen for x in a["failures"]]
    assert not failures, "\n".join(failures)
    assert chosen and (sum(a["tried"] for a in chosen) or kind == "corpus")


@pytest.mark.parametrize("kind", QUICK)
def test_nothing_gets_through(kind: str, quick: Results) -> None:
    check(quick, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SLOW)
def test_nothing_gets_through_for_minutes(kind: str, slow: Results) -> None:
    check(slow, kind)
