"""The attacks notice what they are looking for: planted mistakes fail."""

from __future__ import annotations

import json
import os
import pickle
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discorl.errors import DiscorlError
from tests.attacks import fuzz
from tests.attacks.__main__ import main
from tests.attacks.archives import Telltale, mutate_archive, npy, pack, stored, unpack
from tests.attacks.commands import Said
from tests.attacks.crash_points import CrashPoints
from tests.attacks.fuzz import Fuzz
from tests.attacks.signals import Signals
from tests.attacks.targets import Target
from tests.attacks.trees import mutate_tree, sealed
from tests.attacks.whole import differences


@dataclass(frozen=True)
class Planted:
    """A program of a few files, which may write its result in a bad way."""

    is_atomic: bool
    name: str = "planted"
    is_exact: bool = True

    def begin(self, folder: Path, steps: int) -> int:
        folder.mkdir(exist_ok=True)
        (folder / "config.new").write_text("{}")
        os.replace(folder / "config.new", folder / "config.json")
        return self.resume(folder)

    def resume(self, folder: Path) -> int:
        print("Resuming after step 0")
        path = folder / "result"
        if path.exists():
            return 0
        beside = folder / "result.new" if self.is_atomic else path
        beside.write_bytes(b"a result")
        if self.is_atomic:
            os.replace(beside, path)
        return 0

    def saved_step(self, folder: Path) -> int:
        return 0


@dataclass(frozen=True)
class Forgetful(Planted):
    """Logs steps, and saves none of them."""

    def resume(self, folder: Path) -> int:
        with (folder / "metrics.jsonl").open("w") as log:
            for step in range(1, 100):
                log.write(json.dumps({"step": step}) + "\n")
                log.flush()
                time.sleep(0.005)
        return 0


def test_a_file_that_is_written_in_place_does_not_survive(tmp_path: Path) -> None:
    for is_atomic in (True, False):
        room = tmp_path / str(is_atomic)
        room.mkdir()
        cases = list(CrashPoints(Planted(is_atomic)).cases(0, 0, 16, room))
        failed = [case.what for case in cases if case.verdict == "failed"]
        assert bool(failed) == (not is_atomic), failed
        if failed:
            assert any("half write result: result differs" in what for what in failed)


def test_steps_that_are_not_saved_are_missed(tmp_path: Path) -> None:
    cases = list(Signals(Forgetful(True)).cases(0, 0, 4, tmp_path))
    assert any("was logged, but only 0 is saved" in case.what for case in cases), cases


def run_code(path: Path) -> None:
    pickle.loads(pickle.dumps(Telltale(path.parent / "canary")))


def take_memory(path: Path) -> None:
    sys.intern(str(len(bytearray(os.urandom(1)) * (fuzz.MAX_GROWTH + 2**28))))


def refuse(words: str) -> Callable[[Path], Any]:
    def read(path: Path) -> None:
        raise DiscorlError(words)

    return read


READERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "fine": (lambda path: None, ""),
    "refuses": (refuse("no"), ""),
    "raises": (lambda path: {}["a"], "KeyError at test_tools.py"),
    "dies": (lambda path: os._exit(7), "the process died (7)"),
    "sleeps": (lambda path: time.sleep(60), "more than 1 s"),
    "runs code": (run_code, "it ran code"),
    "memory": (take_memory, "GB"),
    "colours": (lambda path: print("\x1b[31m"), "control characters"),
    "lines": (lambda path: print("a\nb", file=sys.stderr) or refuse("no")(path), "not one line"),
}


@pytest.mark.parametrize("name", READERS)
def test_bad_readers_are_noticed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, words = READERS[name]
    if name == "sleeps":
        monkeypatch.setattr(fuzz, "MAX_SECONDS", 1)
    is_warm = tmp_path / "is-warm"

    def read_after_first(folder: Path) -> None:
        if is_warm.exists():
            read(folder)
        is_warm.touch()

    def prepare(folder: Path) -> None:
        (folder / "file").write_bytes(b"something")

    target = Target("planted", "file", prepare, lambda rng, data, _: data, (read_after_first,))
    (case,) = Fuzz(target).cases(0, 0, 1, tmp_path)
    assert (case.verdict == "failed") == bool(words), case
    assert words in case.what
    assert case.verdict == "refused" or name != "refuses"


def test_what_a_command_may_say() -> None:
    assert Said(0, "fine\n", "").complaint() is None
    assert Said(2, "", "warning: a\nerror: b\n").complaint() is None
    assert "not one line" in (Said(2, "", "error: a\nb\n").complaint() or "")
    assert "not one line" in (Said(2, "", "Traceback\n").complaint() or "")
    assert "exit 1" in (Said(1, "", "").complaint() or "")
    assert "control" in (Said(0, "\x1b[0m", "").complaint() or "")


def test_differences_are_found(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for folder in (a, b):
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "metrics.jsonl").write_text('{"step": 1, "seconds": 2.0, "x": 1}\n')
        header = b'{"tree":{"dict":{"seconds":%d}},"arrays":[]}' % (folder == a)
        (folder / "checkpoints" / "checkpoint-1.dc").write_bytes(sealed(header, b"data"))
    assert differences(a, b, is_exact=True) == []
    (b / "metrics.jsonl").write_text('{"step": 1, "seconds": 3.0, "x": 2}\n')
    (b / ".metrics.jsonl.abc").touch()
    (b / "checkpoints" / "checkpoint-1.dc").write_bytes(sealed(header, b"beta"))
    assert differences(a, b, is_exact=True) == [
        ".metrics.jsonl.abc is left over",
        "checkpoints/checkpoint-1.dc differs",
        "metrics.jsonl differs",
    ]


def test_a_stopped_run_may_have_another_checkpoint_than_the_newest(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for folder, steps in ((a, (28, 30)), (b, (29, 30))):
        (folder / "checkpoints").mkdir(parents=True)
        for step in steps:
            path = folder / "checkpoints" / f"checkpoint-{step}.dc"
            path.write_bytes(sealed(b'{"tree":{},"arrays":[]}', b"data"))
    assert len(differences(a, b, is_exact=True)) == 2
    assert differences(a, b, is_exact=True, was_stopped=True) == []
    (b / "checkpoints" / "checkpoint-30.dc").unlink()
    assert differences(a, b, is_exact=True, was_stopped=True)


def test_archives_that_nobody_changed_are_whole(tmp_path: Path) -> None:
    data = pack([stored(b"a.npy", npy("'<f4'", "(2,)", bytes(8)))], b"said")
    (tmp_path / "a.npz").write_bytes(data)
    with np.load(tmp_path / "a.npz") as archive:
        assert archive["a"].tolist() == [0, 0]
    assert unpack(data)[1] == b"said"
    changed = {mutate_archive(random.Random(i), data, tmp_path / "canary") for i in range(50)}
    assert len(changed) > 40
    tree = sealed(
        b'{"tree":{"tensor":0},"arrays":[{"dtype":"float32","shape":[1],"order":[0]}]}', bytes(4)
    )
    assert len({mutate_tree(random.Random(i), tree) for i in range(50)}) > 40


def test_an_unknown_attack_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "nothing"]) == 2
    assert "fuzz-rule" in capsys.readouterr().err
