"""Thousands of corrupted rule files: each loads as something sound, or is refused in our words."""

from __future__ import annotations

import json
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from discorl.errors import DiscorlError
from discorl.rules.store import load_rule
from tests.builders import write_small_rule


@pytest.fixture(scope="module")
def rule_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_rule(tmp_path_factory.mktemp("rules") / "rule.npz")


def is_refused(path: Path) -> bool:
    """Whether the file is refused; whatever else is raised fails the test."""
    message, params = path.name, None
    try:
        params = load_rule(path).params
    except DiscorlError as e:
        message = str(e)
    assert path.name in message
    assert all(bool(p.isfinite().all()) for p in (params or {}).values())
    return params is None


def flip(data: bytearray, noise: random.Random) -> None:
    for _ in range(noise.choice([1, 1, 1, 20])):
        data[noise.randrange(len(data))] ^= 1 << noise.randrange(8)


def swap(data: bytearray, noise: random.Random) -> None:
    i, j = noise.randrange(len(data)), noise.randrange(len(data))
    data[i], data[j] = data[j], data[i]


def cut(data: bytearray, noise: random.Random) -> None:
    del data[noise.randrange(len(data)) :]


def remove_or_repeat(data: bytearray, noise: random.Random) -> None:
    i, n = noise.randrange(len(data)), noise.randrange(1, 200)
    if noise.random() < 0.5:
        del data[i : i + n]
    else:
        data[i:i] = data[i : i + n]


def huge_number(data: bytearray, noise: random.Random) -> None:
    """All ones in a field of the directory at the end: sizes, offsets, counts."""
    start = data.rindex(b"PK\x01\x02")
    i = noise.randrange(start, len(data) - 4)
    data[i : i + noise.choice([2, 4])] = b"\xff" * noise.choice([2, 4])


def random_bytes(data: bytearray, noise: random.Random) -> None:
    data[:] = noise.choice([b"", b"PK\x03\x04", b"PK\x05\x06"]) + noise.randbytes(300)


DAMAGES: list[Callable[[bytearray, random.Random], None]] = [
    *(flip, swap, cut, remove_or_repeat, huge_number, random_bytes)
]


def damage_many(rule_file: Path, damage: Any, count: int) -> int:
    whole, path = rule_file.read_bytes(), rule_file.with_name("damaged.npz")
    noise = random.Random(damage.__name__)
    refused = 0
    for _ in range(count):
        data = bytearray(whole)
        damage(data, noise)
        path.write_bytes(data)
        refused += is_refused(path)
    return refused


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
def test_hundreds_of_damaged_files(damage: Any, rule_file: Path) -> None:
    assert damage_many(rule_file, damage, 400) > 80


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=3), x, max_size=3),
    max_leaves=6,
)
names = {
    "value_head": ["num_bins", "max_abs", "squashed", "odd"],
    "returns": ["discount", "lambda_", "moment_decay"],
    "weights": ["pi", "y", "z", "aux_pi", "q"],
}
comments = st.fixed_dictionaries(
    {"discorl_rule": st.sampled_from([1, 2]) | values},
    optional={
        **{k: st.dictionaries(st.sampled_from(v), values, max_size=3) for k, v in names.items()},
        "target_rate": values,
        "auxiliary": values,
        "provenance": values,
        "odd": values,
    },
)


@given(comments | values)
@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_settings_are_sound_or_refused(rule_file: Path, comment: Any) -> None:
    path = rule_file.with_name("settings.npz")
    shutil.copy(rule_file, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = json.dumps(comment).encode()
    is_refused(path)
