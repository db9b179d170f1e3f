from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from discorl.errors import DiscorlError
from discorl.runs import curves
from discorl.runs.curves import plot_curve, text_curve
from discorl.runs.device import choose_device
from discorl.runs.files import held, load_params, new_run_folder, save_params, write_json
from discorl.runs.metrics import Row
from tests.builders import assert_bit_equal
from tests.test_atomic import kill_while_writing


def test_params_round_trip(tmp_path: Path) -> None:
    params = {"a.weight": torch.randn(2, 3), "b": torch.tensor(1.5)}
    save_params(tmp_path / "agent.npz", params)
    loaded = load_params(tmp_path / "agent.npz")
    assert loaded.keys() == params.keys()
    assert_bit_equal(loaded, params)


def test_params_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DiscorlError, match="no agent at"):
        load_params(tmp_path / "gone.npz")
    (tmp_path / "bad.npz").write_text("bad")
    with pytest.raises(DiscorlError, match="not an agent file") as error:
        load_params(tmp_path / "bad.npz")
    assert "pickle" not in str(error.value), "NumPy's advice is to unpickle it"


def test_a_folder_holds_one_run(tmp_path: Path) -> None:
    folder = new_run_folder(tmp_path / "a" / "b", "x")
    assert folder == tmp_path / "a" / "b"
    assert new_run_folder(folder, "x") == folder, "an empty folder will do"
    write_json(folder / "config.json", {})
    with pytest.raises(DiscorlError, match="already holds a run"):
        new_run_folder(folder, "x")


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(DiscorlError, match="choose another --out"):
            new_run_folder(out, "x")


def test_default_folders_do_not_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda pattern: "now")
    first = new_run_folder(None, "x")  # which has written nothing yet
    second = new_run_folder(None, "x")
    assert first != second
    assert second.is_dir()
    write_json(first / "config.json", {})
    second.rmdir()
    assert new_run_folder(None, "x") == second


def test_curves(tmp_path: Path) -> None:
    rows = [{"env_steps": i, "success": i / 9, "loss": 1.0} for i in range(10)]
    plot_curve(tmp_path / "curve.png", rows, "a title", "catch rate")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    lines = text_curve(rows).splitlines()
    assert "1.00" in lines[0]
    assert "0.00" in lines[-1]
    assert lines[0].endswith("█")
    assert lines[0].count("█") == 1


@pytest.mark.parametrize("rows", [[], [{"env_steps": 1}], [{"env_steps": 1, "return": 2.0}]])
def test_curves_of_almost_nothing(rows: list, tmp_path: Path) -> None:
    plot_curve(tmp_path / "curve.png", rows, "a title", "success")
    assert (tmp_path / "curve.png").exists()
    assert isinstance(text_curve(rows), str)


def test_devices() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type in ("cpu", "cuda", "mps")
    for name in ("abacus", "cpu:x", "meta"):
        with pytest.raises(DiscorlError, match="try --device auto"):
            choose_device(name)
    with pytest.raises(DiscorlError) as error:
        choose_device("x" * 10_000)
    assert len(str(error.value)) < 500


# --- what killed processes leave -----------------------------------------------------------------

WRITTEN = (
    *("config.json", "metrics.jsonl", "agent.npz", "env.npz", "rule.npz", "curve.png"),
    *("checkpoints/checkpoint-120.dc", "checkpoints/checkpoint-7-diverged.dc"),
    "snapshots/rule-30.npz",
)


def test_whoever_holds_a_folder_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    for place in ("checkpoints", "snapshots"):
        (tmp_path / place).mkdir()
    kill_while_writing(tmp_path / "agent.npz")
    for number, name in enumerate(WRITTEN):
        path = tmp_path / name
        left = path.with_name(f".{path.name}.k3j4h5g{number}.discorl-tmp")
        early = path.with_name(f".{path.name}.a_b4h5g{number}")  # as earlier versions called them
        early.touch(0o600)
        left.touch()
    with held(tmp_path):
        left = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert left == []


@pytest.mark.parametrize(
    "name",
    [
        *(".agent.npz.original", ".agent.npz.20261117", ".agent.npz.bak", ".agent.npz.k3j4h5g6.gz"),
        *(".evaluation.json.k3j4h5g6.discorl-tmp", ".notes.k3j4h5g6", "agent.npz.k3j4h5g6"),
        *("agent.npz", ".checkpoint-1.dc.k3j4h5g6", "checkpoints/.agent.npz.k3j4h5g6"),
        "mine/.agent.npz.k3j4h5g6.discorl-tmp",
    ],
)
def test_the_files_of_others_stay(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.touch(0o600)
    with held(tmp_path):
        assert path.exists()


def test_what_others_may_read_was_never_half_written(tmp_path: Path) -> None:
    (tmp_path / ".agent.npz.k3j4h5g6").touch()
    (tmp_path / ".agent.npz.k3j4h5g6").chmod(0o644)
    with held(tmp_path):
        assert (tmp_path / ".agent.npz.k3j4h5g6").exists()


def test_who_is_refused_removes_nothing(tmp_path: Path) -> None:
    with held(tmp_path):
        (tmp_path / ".agent.npz.k3j4h5g6.discorl-tmp").touch()
        with pytest.raises(DiscorlError, match="another process"), held(tmp_path):
            pass
        assert (tmp_path / ".agent.npz.k3j4h5g6.discorl-tmp").exists()


# --- long curves and gaps ------------------------------------------------------------------------


def picture(rows: Iterable[Row], path: Path) -> np.ndarray:
    from matplotlib.image import imread

    plot_curve(path, rows, "a title", "success")
    return imread(path)


def test_a_long_curve_looks_the_same_when_it_is_thinned_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow rise with noise, and a peak of a single row, which must not be lost."""
    noise = np.random.default_rng(0).normal(0, 0.02, 40_000).tolist()
    rows = [
        {"env_steps": i, "return": i / 40_000 + x, "loss": 1 / (1 + i)} for i, x in enumerate(noise)
    ]
    rows[23_456]["return"] = 5.0
    thinned = picture(rows, tmp_path / "thinned.png")
    monkeypatch.setattr(curves, "MAX_POINTS", 100_000)
    whole = picture(rows, tmp_path / "whole.png")
    differing = (np.abs(thinned - whole).max(axis=-1) > 0.2).mean()
    assert differing < 0.001, f"{differing:.2%} of the pixels"
    rows[23_456]["return"] = 0.5
    without_peak = picture(rows, tmp_path / "without.png")
    assert (np.abs(without_peak - whole).max(axis=-1) > 0.5).mean() > 0.01, "else nothing is shown"


def test_lines_are_kept_short_and_keep_their_extremes() -> None:
    line = curves._Line()
    for i in range(1_000_001):
        line.add(i, -7.0 if i == 777_777 else 9.0 if i == 333_333 else i % 5, gaps=i > 500_000)
    x, y = line.points()
    assert len(x) <= 2.1 * curves.MAX_POINTS
    assert list(x) == sorted(x)
    assert np.diff(x).max() < 1000, "as dense at its beginning as at its end"
    points = dict(zip(x, y, strict=True))
    assert (points[777_777], points[333_333]) == (-7.0, 9.0)
    (gap,) = {x for x, y in points.items() if math.isnan(y)}
    assert gap == 500_001


def test_curves_break_where_rows_were_lost(tmp_path: Path) -> None:
    rows = [{"env_steps": i, "return": 1.0, "loss": 1.0} for i in (1, 2, 3, 20, 21, 22)]
    across = picture(rows, tmp_path / "across.png")
    broken = picture([*rows[:3], rows[3] | {"gap": [4, 19]}, *rows[4:]], tmp_path / "broken.png")
    line = across[:, :, 2] - across[:, :, 0] > 0.3  # blue
    kept = broken[:, :, 2] - broken[:, :, 0] > 0.3
    assert kept.sum() < 0.4 * line.sum()
    assert not (kept & ~line).any()
