from __future__ import annotations

from pathlib import Path

import pytest
import torch

from discorl.errors import DiscorlError
from discorl.runs.curves import plot_curve, text_curve
from discorl.runs.device import choose_device
from discorl.runs.files import load_params, new_run_folder, save_params, write_json
from tests.builders import assert_bit_equal


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
