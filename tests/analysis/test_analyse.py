"""The command: what it writes, what it does not do twice, and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from discorl.analysis import analyse as analyse_module
from discorl.analysis import information, workers
from discorl.analysis.analyse import ANALYSES, analyse
from discorl.analysis.lives import read_life
from discorl.analysis.probes import ProbeSize
from discorl.cli import main
from discorl.comparison.result import Band
from discorl.training.presets import for_run
from discorl.training.train import train
from tests.builders import assert_bit_equal, run_python, write_small_rule
from tests.comparison.test_report import embedded

TASK = "catch:4x3"
NOT_LEARNT = "retraining"
"""In six steps agents learn nothing, so there is nothing that a change of the rule could cost."""
EXPECTED = [name for name in ANALYSES if name != NOT_LEARNT]


@pytest.fixture(scope="module", autouse=True)
def few_probes() -> Iterator[None]:
    """What they find is tested elsewhere. Other processes would not know of the change."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "num_workers", lambda: 1)
        for name in ("SMALL", "LARGE"):
            patch.setattr(information, name, ProbeSize((8,), 3, 16))
        yield


@pytest.fixture(scope="module")
def rule(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_rule(tmp_path_factory.mktemp("rule") / "small.npz")


@pytest.fixture(scope="module")
def done(rule: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whole analysis."""
    out = tmp_path_factory.mktemp("analysis") / "out"
    assert main(arguments(rule, out)) == 0
    return out


def arguments(rule: Path, out: Path, *more: str) -> list[str]:
    known = ["--task", TASK, "--steps", "6", "--seeds", "2", "--out", str(out)]
    return ["analyse", str(rule), *known, *more]


def contents(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "analysis.json").read_text())


def test_every_analysis_leaves_numbers_figures_and_a_page(done: Path) -> None:
    content = contents(done)
    assert [s["name"] for s in content["sections"]] == EXPECTED
    (left_out,) = content["left_out"]
    assert (left_out["task"], left_out["name"]) == (TASK, NOT_LEARNT)
    for section in content["sections"]:
        assert section["task"] == TASK and section["findings"] and section["result"]
        assert section["figures"]
        for figure in section["figures"]:
            for file in figure["files"]:
                assert (done / file).stat().st_size > 1000
            assert {Path(f).suffix for f in figure["files"]} == {".png", ".svg"}
    page = (done / "analysis.html").read_text()
    assert str(done.parent) not in page + json.dumps(content), "folders are private"
    assert "What small does on catch:4x3" in page
    text = re.sub(r'<script type="application/json".*?</script>', "", page, flags=re.DOTALL)
    assert set(re.findall(r"https?://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}
    assert [s["name"] for s in embedded(page)["sections"]] == EXPECTED
    assert "No retraining on catch:4x3: agents learn too little" in embedded(page)["lead"]
    assert sorted(p.name for p in done.iterdir()) == [
        *("agents", "analysis.html", "analysis.json", "figures"),
    ]


def test_what_is_done_is_not_done_again(
    rule: Path, done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (done / "analysis.json").read_bytes()
    monkeypatch.setattr(analyse_module, "read_life", None)
    assert main(arguments(rule, done)) == 0
    assert (done / "analysis.json").read_bytes() == before


@pytest.mark.slow
def test_an_analysis_that_was_stopped_continues(
    rule: Path, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in training and between analyses, it ends with the very same numbers."""
    plain_step, steps = analyse_module.Training.step, []

    def step(self: Any, folder: Path) -> None:
        if len(steps) == 9:  # the second agent has done three of six
            raise KeyboardInterrupt
        steps.append(folder)
        plain_step(self, folder)

    with monkeypatch.context() as patch:
        patch.setattr(analyse_module.Training, "step", step)
        assert analyse(str(rule), [TASK], out=tmp_path, seeds=2, steps=6).interrupted
    assert not (tmp_path / "analysis.json").exists()
    plain_add, added = analyse_module._add, []

    def add(*args: Any) -> None:
        plain_add(*args)
        added.append(args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(analyse_module, "_add", add)
        with pytest.raises(KeyboardInterrupt):
            analyse(str(rule), [TASK], out=tmp_path, seeds=2, steps=6)
    assert len(contents(tmp_path)["sections"]) == 1
    analyse(str(rule), [TASK], out=tmp_path, seeds=2, steps=6)
    assert contents(tmp_path) == contents(done)


def test_lives_are_what_the_checkpoints_hold(done: Path) -> None:
    life = read_life(done / "agents" / "catch-4x3" / "seed-1")
    assert [age.step for age in life.ages] == [0, 2, 4, 6]
    assert (life.task, life.seed, life.label) == (TASK, 1, "small")
    again = read_life(done / "agents" / "catch-4x3" / "seed-1")
    assert_bit_equal([age.state for age in life.ages], [age.state for age in again.ages])
    assert_bit_equal(life.ages[-1].batch, again.ages[-1].batch)
    assert life.ages[0].batch.actions.shape == (16, 64)


def test_a_run_is_analysed_as_it_is(done: Path, tmp_path: Path) -> None:
    run = done / "agents" / "catch-4x3" / "seed-0"
    assert main(["analyse", str(run), "--only", "bootstrapping", "--out", str(tmp_path)]) == 0
    (section,) = contents(tmp_path)["sections"]
    (whole, *_) = (s for s in contents(done)["sections"] if s["name"] == "bootstrapping")
    assert section["task"] == TASK
    band = Band(**section["result"]["reaches"][0]["effect"])
    assert band.low is None, "one agent has no interval"
    assert section["result"]["num_pairs"] == whole["result"]["num_pairs"]


@pytest.mark.parametrize(
    "more, message",
    [
        (["--only", "astrology"], "--only takes learning"),
        (["--seeds", "0"], "seeds must be"),
        (["--steps", "7"], "holds an analysis with other settings: choose another --out"),
        (["--task", "cach"], "cach"),
        (["--only", NOT_LEARNT], "agents learn too little of catch:4x3"),
    ],
)
def test_bad_input_is_one_line(
    rule: Path, done: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(rule, done, *more)) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_what_cannot_be_analysed(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*args: str) -> str:
        assert main(["analyse", *args, "--out", str(tmp_path / "out")]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and not (tmp_path / "out").exists()
        return err

    assert "has no targets to analyse: use cmpo" in refused("actor-critic")
    assert "no rule is called 'nonesuch'" in refused("nonesuch")
    run = done / "agents" / "catch-4x3" / "seed-0"
    assert "leave out --task" in refused(str(run), "--task", "catch")
    assert "config.json" in refused(str(tmp_path))
    config = replace(for_run(TASK, "cmpo"), steps=1, progress="none", out=tmp_path / "bare")
    train(replace(config, device="cpu", checkpoint=replace(config.checkpoint, every_minutes=None)))
    assert "has no checkpoints" in refused(str(tmp_path / "bare"))
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "config.json").write_text('{"kind": "discover"}')
    assert "analyse its rule" in refused(str(tmp_path / "found"))


def test_a_damaged_file_is_named(
    rule: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "analysis.json").write_text("{")
    assert main(arguments(rule, tmp_path)) == 2
    assert "analysis.json is damaged: remove it" in capsys.readouterr().err


def test_the_command_costs_nothing_until_it_is_used() -> None:
    said = run_python(
        "-c",
        "import sys, discorl.cli; print([m for m in sys.modules if 'analysis' in m.split('.')])",
    )
    assert said.stdout.strip() == "[]"


def test_help_names_every_analysis(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyse", "--help"]) == 0
    shown = " ".join(re.sub(r"[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    assert ", ".join(ANALYSES) in shown
