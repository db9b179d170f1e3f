"""Run folders, whole and broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from discorl.comparison.records import find_runs, read_run
from discorl.errors import DiscorlError
from discorl.runs.checkpoint import CheckpointFolder
from tests.comparison.run_folders import constant, line, write_run


def test_a_folder_of_runs_stands_for_them(tmp_path: Path) -> None:
    first, second = (write_run(tmp_path / name, constant(1.0)) for name in "ab")
    (tmp_path / "notes").mkdir()
    assert find_runs([tmp_path]) == [first, second]
    assert find_runs([second, tmp_path]) == [second, first], "each once, where it came first"


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(DiscorlError, match=r"nowhere is not a folder"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(DiscorlError, match=rf"there is no run in {tmp_path}"):
        find_runs([tmp_path])


@pytest.mark.parametrize(
    "text, says",
    [
        ("{", "is not JSON"),
        ("[]", "not the configuration of a run"),
        ('{"task": "catch", "rule": "x"}', "which seed"),
        ('{"task": 3, "rule": "x", "seed": 1}', "which task"),
    ],
)
def test_bad_configurations(text: str, says: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", constant(1.0))
    (folder / "config.json").write_text(text)
    with pytest.raises(DiscorlError, match=says):
        read_run(folder)


def test_no_metrics(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [])
    with pytest.raises(DiscorlError, match=r"metrics.jsonl is empty"):
        read_run(folder)
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(DiscorlError, match=r"has no metrics.jsonl"):
        read_run(folder)


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_a_last_line_cut_short_is_left_out(cut: int, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", constant(1.0, steps=(10, 20)))
    path = folder / "metrics.jsonl"
    half = json.dumps(line(30, 1.0))[:cut]
    path.write_text(path.read_text() + half)
    run = read_run(folder)
    assert run.logged.env_steps.tolist() == [10, 20]
    assert "cut short" in run.notes[0]


@pytest.mark.parametrize(
    "broken, says",
    [
        ("{", "it is not JSON"),
        ("3", "it is not an object"),
        ('{"step": 1, "env_steps": 15}', "it has no seconds"),
        ('{"step": 1, "env_steps": 15, "seconds": 1, "return": NaN}', "its return is nan"),
        (
            '{"step": 1, "env_steps": 15, "seconds": 1, "return": "1"}',
            "its return is not a number",
        ),
        (f'{{"step": 1, "env_steps": 1{"0" * 400}}}', "its env_steps is not a number"),
        ('{"step": 1, "env_steps": 15, "seconds": 1, "return": 1e308}', r"its return is 1e\+308"),
        (f'{{"step": 1, "x": {"[" * 500}{"]" * 500}}}', "its x is not a number"),
        (f'{{"step": 1, "x": {"[" * 9000}{"]" * 9000}}}', "it is not JSON"),
    ],
)
def test_a_broken_line_elsewhere_is_named(broken: str, says: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", constant(1.0, steps=(10, 20)))
    path = folder / "metrics.jsonl"
    first, last = path.read_text().splitlines()
    path.write_text("\n".join([first, broken, last]) + "\n")
    with pytest.raises(DiscorlError, match=f"line 2: {says}"):
        read_run(folder)


def test_a_resumed_run_counts_its_steps_once(tmp_path: Path) -> None:
    rows = [line(10, 1.0), line(20, 2.0), line(30, 3.0), line(20, 5.0), line(30, 6.0)]
    run = read_run(write_run(tmp_path / "run", rows))
    env_steps, seconds, values = run.logged.having("return")
    assert env_steps.tolist() == [10, 20, 30]
    assert seconds.tolist() == [0.1, 0.2, 0.3]
    assert values.tolist() == [1, 5, 6]


def test_lines_without_the_metric(tmp_path: Path) -> None:
    rows = [line(10, 1.0, "loss"), line(20, 2.0), line(30, 3.0, "loss")]
    logged = read_run(write_run(tmp_path / "run", rows)).logged
    assert logged.env_steps.tolist() == [10, 20, 30]
    assert [x.tolist() for x in logged.having("return")] == [[20], [0.2], [2]]
    assert (logged.has("return"), logged.has("success")) == (True, False)


def test_missing_rows_are_noted(tmp_path: Path) -> None:
    whole = [line(n, 1.0) for n in range(10, 70, 10)]
    folder = write_run(tmp_path / "whole", whole, log_every=10)
    assert read_run(folder).notes == ()
    folder = write_run(tmp_path / "run", [*whole[:1], *whole[3:]], log_every=10)
    (note,) = read_run(folder).notes
    assert "has no rows for steps 20 to 30;" in note
    CheckpointFolder(folder / "checkpoints").save(75, {})
    assert "for steps 20 to 30 and step 70;" in read_run(folder).notes[0]


def test_a_configuration_that_is_too_deep_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", constant(1.0))
    for depth in (150, 900, 100_000):
        (folder / "config.json").write_text("[" * depth + "]" * depth)
        with pytest.raises(DiscorlError, match="nested"):
            read_run(folder)
