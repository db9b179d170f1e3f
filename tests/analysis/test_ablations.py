"""Rules without a part: what is discovered, what is reported, and that it can be stopped."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from discorl.analysis import ablations as module
from discorl.analysis.ablations import (
    FULL,
    PARTS,
    Level,
    ablations,
    analyse_ablations,
    small_budget,
    table,
    without,
)
from discorl.cli import main
from discorl.discovery.config import DiscoverConfig
from discorl.rules.store import load_rule
from tests.meta.population import tiny_config

TASKS = ["catch", "umbrella"]


def write_runs(out: Path, num_seeds: int) -> None:
    """Discoveries as they look when they are done."""
    for variant in PARTS:
        for seed in range(num_seeds):
            folder = module._place(out, variant, seed)
            folder.mkdir(parents=True)
            rows: list[dict[str, Any]] = [
                {"step": 1, "return/catch": -1.0},
                {"step": 2, "return/catch": 0.1 * seed, "return/mdp": 1.0},
            ]
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / "metrics.jsonl").write_text(text)


def levels(cmpo: float = 4.0) -> dict[str, Level]:
    """Untrained agents get 2 on each task, the actor-critic 4; so 3 is a score of a half."""
    return {task: Level(task, 2.0, 0.1, 4.0, cmpo) for task in TASKS}


def test_scores_are_means_over_tasks_between_untrained_and_the_actor_critic(
    tmp_path: Path,
) -> None:
    write_runs(tmp_path, 2)
    judged = {(variant, task): [2.0, 2.2] for variant in PARTS for task in TASKS}
    judged[FULL, "catch"], judged[FULL, "umbrella"] = [3.0, 4.0], [4.0, 4.0]
    found = ablations(tmp_path, 2, judged, levels(cmpo=5.0))
    assert [one.variant for one in found.ablated] == list(PARTS)
    full = found.ablated[0]
    assert full.by_seed == pytest.approx([0.75, 1.0])
    assert full.score.value == pytest.approx(0.875)
    assert (full.score.low, full.score.high) == pytest.approx((0.75, 1.0))
    assert full.held_out["catch"].value == pytest.approx(3.5)
    assert found.cmpo == pytest.approx(1.5)
    assert full.curve.band.middle == pytest.approx([-1, (0.05 + 1) / 2])
    assert "in the paper 5.0 of 11.6" in found.findings()[2]
    assert all("intervals do not meet" in text for text in found.findings()[1:])
    assert len(table(dataclasses.asdict(found)).rows) == len(PARTS)


def test_equal_rules_are_not_told_apart(tmp_path: Path) -> None:
    write_runs(tmp_path, 3)
    judged = {(variant, task): [2.3, 2.5, 2.4] for variant in PARTS for task in TASKS}
    found = ablations(tmp_path, 3, judged, levels())
    assert not any("do not meet" in text for text in found.findings())


def test_each_rule_lacks_its_part() -> None:
    config = small_budget(8)
    assert without(config, FULL) == config
    for variant, part in PARTS.items():
        rule = without(config, variant).rule
        parts = ("predictions", "value", "auxiliary", "lifetime")
        missing = [name for name in parts if not getattr(rule, name)]
        assert missing == ([part] if part else [])


def tiny() -> DiscoverConfig:
    return tiny_config(steps=2)


def test_a_study_that_was_stopped_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "PARTS", {FULL: None, "no predictions": "predictions"})
    monkeypatch.setattr(module, "HELD_OUT", ("catch:4x3",))
    monkeypatch.setattr(module, "NUM_UPDATES", 3)
    honest, steps = module.Discovering.step, []

    def step(self: Any, folder: Path) -> None:
        if len(steps) == 3:  # in the middle of the second rule
            raise KeyboardInterrupt
        steps.append(folder)
        honest(self, folder)

    with monkeypatch.context() as patch:
        patch.setattr(module.Discovering, "step", step)
        assert not analyse_ablations(tmp_path, seeds=1, config=tiny())
    assert not (tmp_path / "analysis.html").exists()
    assert analyse_ablations(tmp_path, seeds=1, config=tiny())
    page = (tmp_path / "analysis.html").read_text()
    assert "What each part of a rule is worth" in page
    for variant, part in module.PARTS.items():
        rule = load_rule(module._place(tmp_path, variant, 0) / "rule.npz").rule
        assert rule.missing == ((part,) if part else ())
    content = json.loads((tmp_path / "analysis.json").read_text())
    assert [f["name"] for f in content["sections"][0]["figures"]] == [
        *("discovery-ablations-scores", "discovery-ablations-returns"),
    ]
    assert "no predictions" in capsys.readouterr().out
    monkeypatch.setattr(module, "_discovered", None)
    assert analyse_ablations(tmp_path, seeds=1, config=tiny()), "nothing is discovered again"


@pytest.mark.parametrize(
    "args, message",
    [
        (["disco-mini", "--ablations"], "leave out rule, task and only"),
        (["--ablations", "--seeds", "0"], "seeds must be"),
        ([], "name a rule or the folder of a run"),
    ],
)
def test_bad_input_is_one_line(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyse", *args]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
