"""Rules without a part: what is discovered, what is reported, and that it can be stopped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from discorl.analysis import ablations as module
from discorl.analysis.ablations import (
    FULL,
    PARTS,
    ablations,
    analyse_ablations,
    small_budget,
    without,
)
from discorl.cli import main
from discorl.discovery.config import DiscoverConfig
from discorl.errors import DiscorlError
from discorl.rules.store import load_rule
from tests.meta.population import tiny_config


def write_runs(out: Path, scores: dict[str, list[float]]) -> None:
    """Discoveries as they look when they are done."""
    for variant, of_seeds in scores.items():
        for seed, score in enumerate(of_seeds):
            folder = module._place(out, variant, seed)
            folder.mkdir(parents=True)
            rows: list[dict[str, Any]] = [
                {"step": 1, "return/catch": -1.0},
                {"step": 2, "return/catch": score, "return/mdp": 1.0},
            ]
            rows[-1] |= {"validation": score, "held_out/umbrella": 2 * score}
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / "metrics.jsonl").write_text(text)


def test_scores_are_those_of_the_last_rules(tmp_path: Path) -> None:
    scores = {variant: [0.1 * i, 0.1 * i + 0.02] for i, variant in enumerate(PARTS)}
    scores[FULL] = [0.9, 1.0]
    write_runs(tmp_path, scores)
    found = ablations(tmp_path, 2)
    assert [one.variant for one in found.ablated] == list(PARTS)
    full = found.ablated[0]
    assert full.score.value == pytest.approx(0.95)
    assert (full.score.low, full.score.high) == (0.9, 1.0)
    assert full.held_out["umbrella"].value == pytest.approx(1.9)
    assert full.curve.band.middle == pytest.approx([-1, (0.95 + 1) / 2])
    assert "in the paper 5.0 of 11.6" in found.findings()[2]
    assert all("intervals do not meet" in text for text in found.findings()[1:])
    assert len(found.table().rows) == len(PARTS)


def test_equal_rules_are_not_told_apart(tmp_path: Path) -> None:
    write_runs(tmp_path, {name: [0.3, 0.5, 0.4] for name in PARTS})
    assert not any("do not meet" in text for text in ablations(tmp_path, 3).findings())


def test_a_discovery_that_could_not_be_judged_is_named(tmp_path: Path) -> None:
    write_runs(tmp_path, {name: [0.3] for name in PARTS})
    (module._place(tmp_path, FULL, 0) / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(DiscorlError, match="raise --steps"):
        ablations(tmp_path, 1)


def test_each_rule_lacks_its_part() -> None:
    config = small_budget(8)
    assert without(config, FULL) == config
    for variant, part in PARTS.items():
        rule = without(config, variant).rule
        parts = ("predictions", "value", "auxiliary", "lifetime")
        missing = [name for name in parts if not getattr(rule, name)]
        assert missing == ([part] if part else [])


def tiny() -> DiscoverConfig:
    config = tiny_config(steps=2)
    return replace(
        config, held_out=("catch:4x3",), eval_every=2, eval_updates=3, eval_agents=1, eval_average=1
    )


def test_a_study_that_was_stopped_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "PARTS", {FULL: None, "no predictions": "predictions"})
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
    monkeypatch.setattr(module, "_discover_all", None)
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
