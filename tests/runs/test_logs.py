"""Where metrics go besides metrics.jsonl."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from discorl.errors import DiscorlError
from discorl.runs.logs import log_names, open_log
from discorl.training.callback import RunView
from discorl.training.config import TrainConfig
from discorl.training.rule_choice import read_config
from discorl.training.train import resume, train
from tests.builders import run_python
from tests.training.test_resume import config, crash

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard")

# --- TensorBoard ---------------------------------------------------------------------------------


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself reads from a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {
        name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]
    }


def test_tensorboard_shows_the_rows(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    result = train(config(tmp_path / "run", log="tensorboard"))
    shown = scalars(result.folder)
    assert not {"step", "env_steps"} & shown.keys(), "the axis is no curve"
    assert {"loss", "loss/value", "gradient_norm", "return", "rule/entropy"} <= shown.keys()
    for name in ("loss", "return"):
        want = [(row["env_steps"], pytest.approx(row[name])) for row in result.metrics]
        assert shown[name] == want


def test_tensorboard_goes_on_where_the_run_does(tmp_path: Path) -> None:
    """Killed in step 19 with a checkpoint of step 15: what was logged at 16 is logged again."""
    pytest.importorskip("tensorboard")
    crash(config(tmp_path / "run", log="tensorboard"), 18)
    result = resume(read_config(tmp_path / "run")[0])
    steps = [step for step, _ in scalars(result.folder)["loss"]]
    assert steps == [row["env_steps"] for row in result.metrics]
    assert steps == [14 * n for n in (4, 8, 12, 16, 20, 23)]


def test_tensorboard_shows_a_run_that_is_under_way(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    seen: list[int] = []

    def look(run: RunView) -> None:
        if run.step in (4, 8):
            seen.append(len(scalars(run.folder).get("return", [])))

    train(config(tmp_path / "run", steps=9, log="tensorboard"), callback=look)
    assert seen == [1, 2]


def test_discovery_has_only_its_own_steps(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    log = open_log("tensorboard", tmp_path, {})
    log.write({"step": 3, "meta_return": 1.5, "gap": [1, 2]})
    log.close()
    assert scalars(tmp_path) == {"meta_return": [(3, 1.5)]}


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
        with pytest.raises(DiscorlError, match=rf"pip install 'discorl\[{name}\]'"):
            open_log(name, tmp_path, {})


def test_unknown_logs_are_refused() -> None:
    assert log_names(" tensorboard, wandb") == ["tensorboard", "wandb"]
    with pytest.raises(DiscorlError, match="no log called 'tensorbored'"):
        TrainConfig(log="tensorbored")


# --- Weights & Biases ----------------------------------------------------------------------------


@pytest.mark.slow
def test_wandb_offline_and_when_the_run_goes_on(tmp_path: Path) -> None:
    """The rows are in the files that it would send later, which are of one run there."""
    pytest.importorskip("wandb", reason="needs pip install 'discorl[wandb]'")
    out = tmp_path / "run"
    env = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "HOME": str(tmp_path)}

    def train(*args: object) -> set[Path]:
        before = set((out / "wandb").glob("offline-run-*/run-*.wandb"))
        done = run_python("-m", "discorl", "train", *map(str, args), env=env)
        assert done.returncode == 0, done.stderr
        return set((out / "wandb").glob("offline-run-*/run-*.wandb")) - before

    args = ["--steps", "6", "--log-every", "2", "--device", "cpu", "--progress", "none"]
    args += ["--batch-size", "4", "--replay-capacity", "8", "--rollout-length", "5"]
    args += ["--net.torso", "8", "--rule", "policy-gradient", "--out", str(out)]
    (first,) = train("catch:4x3", "--log", "wandb,tensorboard", *args)
    run_id = (out / "wandb-id").read_text()
    assert first.name == f"run-{run_id}.wandb"
    assert b"gradient_norm" in first.read_bytes()

    (second,) = train("--resume", out, "--steps", 10)
    assert second.name == first.name
    assert second.parent != first.parent
    assert b"gradient_norm" in second.read_bytes()
    assert (out / "wandb-id").read_text() == run_id
    assert [step for step, _ in scalars(out)["loss"]] == [20, 40, 60, 80, 100]
