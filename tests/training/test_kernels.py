"""How a run computes, with kernels and in bf16: as it can, decided once, written down."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from discorl.agents import update
from discorl.cli import main
from discorl.discovery.presets import discovery_preset
from discorl.errors import DiscorlError
from discorl.ops import native
from discorl.ops.native.library import TOLD, NoCompiler, load
from discorl.runs.distributed import Ranks
from discorl.runs.files import load_params
from discorl.training.config import TrainConfig
from discorl.training.kernels import VARIABLE, uses_bf16, uses_kernels
from tests.builders import assert_bit_equal, run_cli
from tests.compiler import copying_compiler, needs_compiler
from tests.foreign import posix

TINY = [
    *("catch:4x3", "--rule", "disco-mini", "--steps", "6", "--batch-size", "4", "--log-every", "2"),
    *("--rollout-length", "7", "--replay-capacity", "8", "--device", "cpu", "--progress", "none"),
    *("--net.torso", "16", "--net.action-lstm", "8", "--net.head-hidden", "8", "--num-envs", "2"),
]


@pytest.fixture(autouse=True)
def _as_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """How many updates used kernels, and how many did not."""
    counted: Counter[bool] = Counter()
    unroll = update.unroll_and_targets

    def noted(*args: Any) -> Any:
        counted[native.in_use(torch.zeros(1))] += 1
        return unroll(*args)

    monkeypatch.setattr(update, "unroll_and_targets", noted)
    return counted


def train(out: Path, *options: str) -> dict[str, Any]:
    assert main(["train", *TINY, "--out", str(out), *options]) == 0
    return json.loads((out / "config.json").read_text())


def agents(*folders: Path) -> list[dict[str, torch.Tensor]]:
    return [load_params(folder / "agent.npz") for folder in folders]


def alone() -> Ranks:
    return Ranks(0, 1, torch.device("cpu"))


def failing(monkeypatch: pytest.MonkeyPatch, error: DiscorlError) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(native, "build", fails)


@needs_compiler
def test_used_by_default_and_written_down(tmp_path: Path, updates: Counter[bool]) -> None:
    assert train(tmp_path / "a")["kernels"] == "on"
    assert updates[True] and not updates[False]
    updates.clear()
    assert train(tmp_path / "b", "--kernels", "off")["kernels"] == "off"
    assert updates[False] and not updates[True]
    first, second = agents(tmp_path / "a", tmp_path / "b")
    for name, x in first.items():
        torch.testing.assert_close(x, second[name], rtol=1e-2, atol=1e-3)
    train(tmp_path / "c")
    assert_bit_equal(*agents(tmp_path / "a", tmp_path / "c"))


@posix
@needs_compiler
def test_the_same_bits_whether_they_are_there_or_have_to_be_made(tmp_path: Path) -> None:
    env = {
        "CXX": copying_compiler(tmp_path, first="sleep 3"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        VARIABLE: "auto",
    }
    folders = tmp_path / "cold", tmp_path / "warm"
    for folder in folders:
        done = run_cli("train", *TINY, "--out", folder, env=env)
        assert done.returncode == 0, done.stderr
        assert (TOLD in done.stderr) == (folder.name == "cold")
        assert json.loads((folder / "config.json").read_text())["kernels"] == "on"
    assert_bit_equal(*agents(*folders))


@needs_compiler
@pytest.mark.slow
def test_threads_do_not_change_a_bit(tmp_path: Path) -> None:
    train(tmp_path / "a", "--threads", "1")
    train(tmp_path / "b", "--threads", "2")
    assert_bit_equal(*agents(tmp_path / "a", tmp_path / "b"))


@needs_compiler
@pytest.mark.parametrize("kernels", ["on", "off"])
def test_resumed_as_it_began(
    kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, updates: Counter[bool]
) -> None:
    train(tmp_path / "whole", "--kernels", kernels, "--steps", "12")
    train(tmp_path / "half", "--kernels", kernels)
    monkeypatch.setenv(VARIABLE, {"on": "off", "off": "on"}[kernels])
    assert main(["train", "--resume", str(tmp_path / "half"), "--steps", "12"]) == 0
    assert set(updates) == {kernels == "on"}
    assert_bit_equal(*agents(tmp_path / "whole", tmp_path / "half"))


def test_runs_of_older_versions_go_on_without(tmp_path: Path, updates: Counter[bool]) -> None:
    """They learnt without kernels, and do not say so."""
    out = tmp_path / "run"
    settings = train(out, "--kernels", "off")
    del settings["kernels"]
    (out / "config.json").write_text(json.dumps(settings))
    updates.clear()
    assert main(["train", "--resume", str(out), "--steps", "9"]) == 0
    assert updates[False] and not updates[True]
    assert json.loads((out / "config.json").read_text())["kernels"] == "off"


@pytest.mark.parametrize("compiled", [False, True])
def test_what_older_runs_had(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "build", lambda: None)
    assert uses_kernels(TrainConfig(compile=compiled), alone(), {"task": "catch"}) == compiled


def test_no_compiler_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, NoCompiler("no C++ compiler was found: install g++"))
    assert not uses_kernels(TrainConfig(), alone())  # a warning would be an error here
    with pytest.raises(DiscorlError, match="--kernels on is impossible here: no C"):
        uses_kernels(TrainConfig(kernels="on"), alone())
    with pytest.warns(UserWarning, match=r"began with the CPU kernels and goes on without \(no C"):
        assert not uses_kernels(TrainConfig(kernels="on"), alone(), {"kernels": "on"})


def test_a_broken_compiler_is(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, DiscorlError("g++ could not compile the kernels: error: no headers"))
    with pytest.warns(UserWarning, match="running without the CPU kernels.*no headers.*off stops"):
        assert not uses_kernels(TrainConfig(), alone())


def test_discovery_has_none_without_avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled for nothing, and only those are told who asked or had them before."""
    monkeypatch.setattr(native, "has_agent_axis", lambda: False)
    monkeypatch.setattr(native, "build", lambda: pytest.fail("compiled in vain"))
    config, ranks = discovery_preset("suite"), Ranks(0, 1, torch.device("cpu"))
    assert not uses_kernels(config, ranks, for_agents=True)
    with pytest.raises(DiscorlError, match=r"--kernels on is impossible here: .*AVX-512"):
        uses_kernels(replace(config, kernels="on"), ranks, for_agents=True)
    with pytest.warns(UserWarning, match=r"goes on without .*AVX-512"):
        assert not uses_kernels(config, ranks, {"kernels": "on"}, for_agents=True)


def test_other_devices_have_no_use_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, DiscorlError("must not be built"))
    assert not uses_kernels(TrainConfig(), Ranks(0, 1, torch.device("cuda")))


def test_the_variable_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, DiscorlError("must not be built"))
    monkeypatch.setenv(VARIABLE, "off")
    assert not uses_kernels(TrainConfig(), alone())
    monkeypatch.setenv(VARIABLE, "perhaps")
    with pytest.raises(DiscorlError, match="DISCORL_KERNELS should be auto, on or off"):
        uses_kernels(TrainConfig(), alone())


@posix
@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        ("no compiler", None),
        ("broken compiler", "false could not compile the kernels"),
        ("read-only home", "cannot make"),
    ],
)
def test_whole_runs_where_they_cannot_be_had(
    trouble: str, told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bits are those of a run that was told to do without."""
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(native, "build", load.__wrapped__)  # whatever this process has loaded
    monkeypatch.setenv("CXX", "false")
    if trouble == "no compiler":
        monkeypatch.delenv("CXX")
        monkeypatch.setenv("PATH", str(tmp_path))
    elif trouble == "read-only home":
        cache.chmod(0o500)
        if os.geteuid() == 0:  # whom no mode stops: there is a file where the folder should be
            (cache / "discorl").write_text("")
    with pytest.warns(UserWarning, match=told) if told else nullcontext():
        assert train(tmp_path / "run")["kernels"] == "off"
    train(tmp_path / "off", "--kernels", "off")
    assert_bit_equal(*agents(tmp_path / "run", tmp_path / "off"))


WIDE = ("--net.torso", "64", "--net.action-lstm", "64", "--net.head-hidden", "64")


@needs_compiler
def test_bf16_where_it_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "bf16_gain", lambda: 2.0)
    half, whole = tmp_path / "half", tmp_path / "whole"
    assert train(half, *WIDE, "--precision", "bf16")["precision"] == "bf16"
    train(whole, *WIDE, "--precision", "bf16", "--steps", "9")
    assert main(["train", "--resume", str(half), "--steps", "9"]) == 0
    assert_bit_equal(*agents(half, whole))
    assert train(tmp_path / "exact", *WIDE, "--steps", "9")["precision"] == "float32"
    rounded, exact = agents(whole, tmp_path / "exact")
    assert any(not torch.equal(x, exact[name]) for name, x in rounded.items())
    assert main(["evaluate", str(whole), "--episodes", "2"]) == 0


@pytest.mark.parametrize(
    ("gain", "told"), [(0.0, "no AVX-512 BF16"), (0.4, "only 0.40 times as fast")]
)
def test_bf16_where_it_does_not(gain: float, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "bf16_gain", lambda: gain)
    config = TrainConfig(precision="bf16")
    with pytest.warns(UserWarning, match=f"using float32, not bf16: .*{told}"):
        assert not uses_bf16(config, alone(), kernels=True)
    with pytest.warns(UserWarning, match=f"began with bf16, and goes on slowly: .*{told}"):
        assert uses_bf16(config, alone(), kernels=True, before={"precision": "bf16"})
    assert not uses_bf16(config, alone(), kernels=True, before={"task": "catch"})


def test_bf16_without_kernels() -> None:
    with pytest.warns(UserWarning, match="not bf16: it takes the CPU kernels"):
        assert not uses_bf16(TrainConfig(precision="bf16"), alone(), kernels=False)
