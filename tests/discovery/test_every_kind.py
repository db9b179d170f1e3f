"""Every kind of task beside a tensor task: in one process and in two, killed and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from discorl.discovery.discover import Discovering
from discorl.runs.checkpoint import from_bytes, load, to_bytes
from discorl.runs.distributed import Ranks
from discorl.runs.metrics import TIMING_FIELDS, read_rows
from tests.builders import assert_bit_equal, run_python
from tests.discovery.every_kind import ALL, KILLED_IN, ONES, STEPS, config_of, tasks_of
from tests.discovery.test_discover import rows_without_times, rule_arrays

FAST = ("vectors", "MinAtar")
KINDS = [pytest.param(k, marks=() if k in FAST else pytest.mark.slow) for k in (*ONES, ALL)]
LOST = dict.fromkeys(("env_state", "timestep", "memory", "running_return"))


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if not tasks_of(request.param):
        pytest.skip(f"needs the package of {ONES[request.param]}")
    return request.param


@pytest.fixture(scope="module")
def runs(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    done = run_python("-m", "tests.discovery.every_kind", out, kind, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-2000:]
    return out / kind


def saved(run: Path, step: int) -> dict[str, Any]:
    return load(run / "checkpoints" / f"checkpoint-{step}.dc")


def test_two_processes_give_the_rule_that_one_gives(runs: Path) -> None:
    want, got = (rule_arrays(runs / name / "rule.npz") for name in ("one", "two"))
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
    one, two = (read_rows(runs / name / "metrics.jsonl") for name in ("one", "two"))
    assert len(one) == len(two) == STEPS
    for a, b in zip(one, two, strict=True):
        assert a.keys() == b.keys()
        for key in a.keys() - {*TIMING_FIELDS}:
            assert b[key] == pytest.approx(a[key], rel=1e-3, abs=1e-4, nan_ok=True), key


def test_killed_and_resumed_tensor_tasks_have_the_same_bits(kind: str, runs: Path) -> None:
    """As long as the rule is the same, which also learns from the other environments: theirs is the
    only difference."""
    whole, killed = (rows_without_times(runs / name) for name in ("two", "killed"))
    assert [row["step"] for row in killed] == list(range(1, STEPS + 1))
    assert killed[: KILLED_IN - 1] == whole[: KILLED_IN - 1]
    whole, killed = (saved(runs / name, KILLED_IN) for name in ("two", "killed"))
    on_tensors = [
        i for i in whole["groups"] if whole["groups"][i]["state"]["env_state"] is not None
    ]
    assert str(len(whole["groups"]) - 1) in on_tensors, "the last task is catch"
    for i in on_tensors:
        assert_bit_equal(killed["groups"][i], whole["groups"][i])
    if len(on_tensors) == len(whole["groups"]):
        assert_bit_equal(killed["rule"], whole["rule"])
        assert rows_without_times(runs / "two") == rows_without_times(runs / "killed")
    else:
        assert kind != "memory"


def test_all_but_the_episodes_comes_back(kind: str, runs: Path, tmp_path: Path) -> None:
    """From the checkpoint of two processes, in one."""
    before = saved(runs / "killed", KILLED_IN - 1)
    assert_bit_equal(before["rule"], saved(runs / "two", KILLED_IN - 1)["rule"])
    program = Discovering(config_of(kind, out=tmp_path), Ranks(0, 1, torch.device("cpu")))
    program.begin()
    program.state.step = KILLED_IN - 1
    note = program.restore(before)
    after = from_bytes(to_bytes(program.snapshot()))
    assert before["groups"].keys() == after["groups"].keys()
    assert_bit_equal(before["rule"], after["rule"])
    for i, group in before["groups"].items():
        assert_bit_equal(but_episodes(group), but_episodes(after["groups"][i]))
    assert ("new episodes" in note) == (kind != "memory")
    program.finish(tmp_path, [])


def but_episodes(group: dict[str, Any]) -> dict[str, Any]:
    """A saved group, without the rewards of episodes that are lost with their environments."""
    state = group["state"]
    return group if state["env_state"] is not None else group | {"state": state | LOST}
