"""The records notice what they are there to notice."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.compatibility.record import assert_recorded, compact, fingerprint, run_command, summary


def weights(scale: float = 1.0) -> Any:
    return np.linspace(-1, 2, 30, dtype=np.float32) * np.float32(scale)


def recorded() -> Any:
    return json.loads(json.dumps({"agent": summary(weights()), "rows": [{"loss": 0.5, "n": 3}]}))


def found(**changes: Any) -> Any:
    return {"agent": summary(weights()), "rows": [{"loss": 0.5, "n": 3}]} | changes


def last_bit() -> Any:
    changed = weights()
    changed[7] = np.nextafter(changed[7], np.float32(9))
    return found(agent=summary(changed))


@pytest.mark.parametrize("machine", [fingerprint(), "another"])
def test_what_is_equal_passes(machine: str) -> None:
    assert_recorded(found(), recorded(), machine)


def test_a_bit_counts_on_the_same_machine_only() -> None:
    assert_recorded(last_bit(), recorded(), "another")
    with pytest.raises(AssertionError, match="/agent/sha256 is"):
        assert_recorded(last_bit(), recorded(), fingerprint())


@pytest.mark.parametrize("machine", [fingerprint(), "another"])
@pytest.mark.parametrize(
    "changes, message",
    [
        ({"agent": summary(weights(1.05))}, "/agent/abs_sum is"),
        ({"agent": summary(weights()[::-1])}, r"/agent/some\[0\] is"),
        ({"agent": summary(weights().reshape(3, 10))}, "/agent/shape has 2 entries"),
        ({"agent": summary(weights().astype(np.float64))}, "/agent/dtype is"),
        ({"rows": [{"loss": 0.52, "n": 3}]}, r"/rows\[0\]/loss is 0.52, not 0.5"),
        ({"rows": [{"loss": float("nan"), "n": 3}]}, "loss is nan"),
        ({"rows": [{"loss": 0.5, "n": 4}]}, "n is 4, not 3"),
        ({"rows": [{"loss": 0.5}]}, "n is missing"),
        ({"rows": [{"loss": 0.5, "n": 3, "x": 1}]}, "x is new"),
        ({"rows": []}, "/rows has 0 entries, not 1"),
    ],
)
def test_what_differs_is_named(machine: str, changes: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_recorded(found(**changes), recorded(), machine)


@pytest.mark.parametrize("name", ["loss", "loss/aux_pi", "total_loss"])
def test_a_reported_loss_may_differ_in_its_last_digits(name: str) -> None:
    kept = json.loads(json.dumps({"rows": [{name: 0.5}]}))
    assert_recorded({"rows": [{name: 0.5 + 3e-7}]}, kept, fingerprint())
    with pytest.raises(AssertionError, match=f"{name} is"):
        assert_recorded({"rows": [{name: 0.5 + 3e-6}]}, kept, fingerprint())


@pytest.mark.parametrize("name", ["return", "meta_loss/catch", "gradient_norm", "loss_scale"])
def test_other_numbers_may_not(name: str) -> None:
    with pytest.raises(AssertionError, match=f"{name} is"):
        assert_recorded({"rows": [{name: 0.5 + 3e-7}]}, {"rows": [{name: 0.5}]}, fingerprint())


def test_long_lists_are_arrays() -> None:
    numbers = [float(i) for i in range(20)]
    assert compact({"a": [numbers, numbers[:3]]})["a"][0] == summary(np.array(numbers))
    assert compact({"a": [numbers, numbers[:3]]})["a"][1] == numbers[:3]


def test_a_command_that_fails_is_not_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="returned 2"):
        run_command("train", "no-such-task")
    assert "no-such-task" in capsys.readouterr().err
