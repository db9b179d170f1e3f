"""Where metrics go."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from discorl.errors import DiscorlError
from discorl.runs.metrics import MetricsFile, log_names, open_log, read_rows, rewind
from discorl.training.config import TrainConfig
from discorl.training.rule_choice import read_config
from discorl.training.stats import replay_age
from discorl.training.train import resume, train
from tests.builders import run_python, write_small_rule
from tests.training.test_resume import config, crash

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard")


def rows_of(*steps: int) -> list[dict[str, Any]]:
    return [{"step": step, "loss": step / 7} for step in steps]


def test_rows_are_there_as_soon_as_written(tmp_path: Path) -> None:
    log = MetricsFile(tmp_path / "m.jsonl")
    for row in rows_of(1, 2):
        log.write(row)
    assert read_rows(tmp_path / "m.jsonl") == rows_of(1, 2)
    log.close()


def test_rewinding(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    text = "".join(json.dumps(row) + "\n" for row in rows_of(4, 8, 10, 12, 16))
    path.write_text(text + '{"step": 20, "lo')
    assert rewind(path, 13, [4], last=20) == rows_of(4, 8, 12), "10 was the end of a shorter run"
    assert read_rows(path) == rows_of(4, 8, 12)
    assert rewind(path, 0, [4], last=20) == []
    assert path.read_bytes() == b""
    assert rewind(tmp_path / "new.jsonl", 0, [1], last=1) == []


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(DiscorlError, match="damaged at line 2: it is not JSON"):
        read_rows(tmp_path / "m.jsonl")


@pytest.mark.parametrize(
    "line, says",
    [
        ("3", "it is not an object"),
        ('{"loss": 1}', "it has no step"),
        ('{"step": "1"}', "it has no step"),
    ],
)
def test_a_line_without_a_step_is_named(line: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text(f'{{"step": 1}}\n{line}\n')
    with pytest.raises(DiscorlError, match=f"damaged at line 2: {says}"):
        rewind(tmp_path / "m.jsonl", 1, [1], last=1)


def test_a_full_disk_is_one_message(tmp_path: Path) -> None:
    """/dev/full refuses every byte, as a full disk does."""
    (tmp_path / "m.jsonl").symlink_to("/dev/full")
    log = MetricsFile(tmp_path / "m.jsonl")
    with pytest.raises(DiscorlError, match=r"No space left on device; free some space.*--resume"):
        log.write({"step": 1})
    log.close()
    with pytest.raises(DiscorlError, match="cannot write"):
        MetricsFile(tmp_path)


def test_what_a_row_tells(tmp_path: Path) -> None:
    rule = str(write_small_rule(tmp_path / "rule.npz"))
    rows = train(config(tmp_path / "run", rule=rule)).metrics
    assert {
        *("step", "env_steps", "seconds", "steps_per_second", "env_steps_per_second", "episodes"),
        *("return", "length", "success", "loss", "gradient_norm", "update_norm", "replay/age"),
        *("loss/pi", "loss/y", "loss/z", "loss/q", "loss/aux_pi"),
        *("rule/entropy", "rule/y_entropy", "rule/z_entropy", "rule/target_kl"),
    } <= rows[-2].keys()
    # 2 trajectories come in at each step: after step 4 there are two of each age from 0 to 3.
    assert [row["replay/age"] for row in rows] == [1.5, *[2.5] * 5]


def test_replay_age() -> None:
    for size in range(12):
        ages = [i // 3 for i in range(size)]
        drawn = sum(ages) / max(size, 1)
        assert replay_age(size, 3, num_fresh=0, batch_size=4) == pytest.approx(drawn)
        assert replay_age(size, 3, num_fresh=3, batch_size=4) == pytest.approx(drawn / 4)
    # Two of the newest rollout are not enough for three fresh ones.
    assert replay_age(10, 2, num_fresh=3, batch_size=3) == pytest.approx(1 / 3)


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
    assert "step" not in shown
    assert {"loss", "loss/value", "gradient_norm", "return", "rule/entropy"} <= shown.keys()
    for name in ("loss", "return"):
        want = [(row["step"], pytest.approx(row[name])) for row in result.metrics]
        assert shown[name] == want


def test_tensorboard_goes_on_where_the_run_does(tmp_path: Path) -> None:
    """Killed in step 19 with a checkpoint of step 15: what was logged at 16 is logged again."""
    pytest.importorskip("tensorboard")
    crash(config(tmp_path / "run", log="tensorboard"), 18)
    result = resume(read_config(tmp_path / "run")[0])
    steps = [step for step, _ in scalars(result.folder)["loss"]]
    assert steps == [row["step"] for row in result.metrics] == [4, 8, 12, 16, 20, 23]


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
    assert [step for step, _ in scalars(out)["loss"]] == [2, 4, 6, 8, 10]
