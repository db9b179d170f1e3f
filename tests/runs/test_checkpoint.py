"""Checkpoints: what goes in comes out, and damage is always noticed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import struct
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from discorl.agents.agent import Agent
from discorl.errors import DiscorlError
from discorl.runs import tree_file
from discorl.runs.checkpoint import (
    CheckpointFolder,
    DamagedFile,
    from_bytes,
    load,
    restore,
    save,
    to_bytes,
)
from tests.builders import RULES, assert_bit_equal, rng, run_python, small_agent

PREFIX = struct.Struct("<8sIQQ")


class Pair(NamedTuple):
    left: Tensor
    right: int


@dataclass(frozen=True)
class Thing:
    name: str
    pair: Pair
    more: tuple
    maybe: Tensor | None = None


def everything() -> dict[str, Any]:
    return {
        "thing": Thing("x", Pair(torch.arange(6.0).reshape(2, 3), 7), (1, (), torch.tensor(True))),
        "list": [None, True, 0.1, float("inf"), -(2**80), "naïve\n", []],
        "numpy": {"scalar": np.float32(0.1), "array": np.arange(3, dtype=np.uint16)},
        "empty": torch.zeros(0, 3),
        "half": torch.tensor([1.5, -0.0], dtype=torch.bfloat16),
        "rng": rng(3),
    }


# --- round trips ---------------------------------------------------------------------------------


def test_every_kind_of_entry_comes_back(tmp_path: Path) -> None:
    tree = everything()
    save(tmp_path / "a.dc", tree)
    plain = load(tmp_path / "a.dc")
    assert plain["thing"].keys() == {"name", "pair", "more", "maybe"}
    assert type(plain["list"][2]) is float

    back = restore(everything(), plain)
    assert isinstance(back["thing"], Thing)
    assert isinstance(back["thing"].pair, Pair)
    assert back["thing"].more[:2] == (1, ())
    assert torch.equal(back["thing"].pair.left, tree["thing"].pair.left)
    assert back["list"] == tree["list"]
    assert type(back["numpy"]["scalar"]) is np.float32
    assert back["numpy"]["array"].dtype == np.uint16
    assert back["empty"].shape == (0, 3)
    assert back["half"].dtype == torch.bfloat16
    assert torch.equal(torch.rand(9, generator=back["rng"]), torch.rand(9, generator=tree["rng"]))


@pytest.mark.parametrize("name", RULES)
def test_an_agent_comes_back_to_the_last_bit(name: str) -> None:
    agent: Agent = small_agent(RULES[name]())
    state, template = agent.init_state(rng(1)), agent.init_state(rng(2))
    back = restore(template, from_bytes(to_bytes(state)))
    assert type(back) is type(state)
    assert_bit_equal(back, state)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(3, 4).T,
        torch.randn(2, 3, 4).permute(2, 0, 1),
        torch.randn(4, 6)[:, ::2],
        torch.ones(3).expand(2, 3),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    ],
)
def test_layouts_are_kept_where_they_are_dense(x: Tensor) -> None:
    back = from_bytes(to_bytes(x))
    assert torch.equal(back, x)
    dense = x.numel() == x.untyped_storage().nbytes() // x.element_size()
    assert back.stride() == (x.stride() if dense else x.contiguous().stride())


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.builds(
        lambda shape, dtype: torch.arange(int(np.prod(shape))).reshape(shape).to(dtype),
        st.lists(st.integers(0, 3), max_size=3).map(tuple),
        st.sampled_from(list(tree_file._DTYPES.values())),
    ),
)
trees = st.recursive(
    leaves,
    lambda t: st.one_of(
        st.lists(t, max_size=3),
        st.lists(t, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=4), t, max_size=3),
    ),
    max_leaves=12,
)


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


@given(trees)
@settings(max_examples=300, deadline=None)
def test_any_tree_comes_back(tree: Any) -> None:
    assert equal(tree, from_bytes(to_bytes(tree)))
    assert equal(tree, restore(tree, from_bytes(to_bytes(tree))))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"a": [object()]}, r"a\[0\] is a object"),
        ({"a": {3: 1}}, r"a has the key 3"),
        ({"a": np.array(["x"])}, "a: NumPy type"),
        ({"a": np.array([object()])}, "a: NumPy type"),
        ({"a": {1, 2}}, "a is a set"),
    ],
    ids=["object", "key", "text", "objects", "set"],
)
def test_what_cannot_be_saved_is_named(bad: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(DiscorlError, match=message):
        save(tmp_path / "a.dc", bad)
    assert list(tmp_path.iterdir()) == []


# --- restoring into a template -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t | {"empty": torch.zeros(1, 3)}, r"empty is torch.float32 \[1, 3\], not"),
        (lambda t: t | {"half": torch.zeros(2)}, "half is torch.float32"),
        (lambda t: t | {"extra": 1}, "it has extra"),
        (lambda t: {k: v for k, v in t.items() if k != "list"}, "it lacks list"),
        (lambda t: t | {"list": t["list"][1:]}, "list is a list of 6, not a list of 7"),
        (lambda t: t | {"list": tuple(t["list"])}, "list is a tuple"),
        (lambda t: t | {"thing": replace(t["thing"], pair=None)}, "thing.pair is None"),
        (lambda t: t | {"thing": replace(t["thing"], name=3)}, "thing.name is of type int"),
        (lambda t: t | {"thing": replace(t["thing"], maybe=torch.ones(1))}, "thing.maybe"),
        (lambda t: t | {"rng": torch.zeros(3, dtype=torch.uint8)}, "rng is not the state"),
        (lambda t: t | {"rng": 3}, "rng is not the state"),
        (lambda t: t | {"numpy": {"scalar": 1.0, "array": 1}}, "numpy.scalar is of type float"),
    ],
)
def test_an_entry_that_does_not_fit_is_named(change: Any, message: str) -> None:
    with pytest.raises(DiscorlError, match=message):
        restore(everything(), from_bytes(to_bytes(change(everything()))))


# --- damage --------------------------------------------------------------------------------------

WHOLE = to_bytes({"a": torch.arange(20.0), "b": [1, {"c": "text"}], "g": rng(0)})


def sealed(body: bytes) -> bytes:
    return body + hashlib.sha256(body).digest()


def with_header(header: bytes, data: bytes = b"", version: int = tree_file.VERSION) -> bytes:
    """A file whose checksum is right, whatever it says."""
    return sealed(PREFIX.pack(tree_file.MAGIC, version, len(header), len(data)) + header + data)


def test_every_truncation_is_noticed() -> None:
    for length in range(len(WHOLE)):
        with pytest.raises(DamagedFile):
            from_bytes(WHOLE[:length])
    with pytest.raises(DamagedFile):
        from_bytes(WHOLE + b"\0")


@given(st.integers(0, len(WHOLE) * 8 - 1))
@settings(max_examples=2000, deadline=None)
def test_every_flipped_bit_is_noticed(bit: int) -> None:
    data = bytearray(WHOLE)
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DamagedFile):
        from_bytes(bytes(data))


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, len(WHOLE) - 1))
@settings(max_examples=1000, deadline=None)
def test_swapped_bytes_are_noticed(i: int, j: int) -> None:
    data = bytearray(WHOLE)
    data[i], data[j] = data[j], data[i]
    if bytes(data) == WHOLE:
        return
    with pytest.raises(DamagedFile):
        from_bytes(bytes(data))


@given(st.binary(max_size=300), st.booleans())
@settings(max_examples=1000, deadline=None)
def test_noise_is_refused(noise: bytes, with_magic: bool) -> None:
    with pytest.raises(DiscorlError):
        from_bytes(sealed(tree_file.MAGIC + noise) if with_magic else noise)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6)),
    lambda t: st.one_of(
        st.lists(t, max_size=4),
        st.dictionaries(
            st.sampled_from(
                [
                    "tree",
                    "arrays",
                    "tensor",
                    "array",
                    "scalar",
                    "dict",
                    "list",
                    "tuple",
                    "dtype",
                    "shape",
                    "order",
                ]
            ),
            t,
            max_size=4,
        ),
    ),
    max_leaves=20,
)
array_entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["float32", "int64", "bool", "object", "float32 ", 3, None]),
        "shape": st.lists(st.sampled_from([0, 1, 2, -1, 2**31, 2**62, 2**64, 10**30, 1.0, "2"])),
        "order": st.lists(st.integers(-1, 3), max_size=4),
    }
)


@given(json_values, st.lists(array_entries, max_size=3) | json_values, st.binary(max_size=40))
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_header_with_a_right_checksum_is_still_not_believed(
    tree: Any, arrays: Any, data: bytes
) -> None:
    """Either it is sound by chance, and then can be written again, or there is an error of ours."""
    file = with_header(json.dumps({"tree": tree, "arrays": arrays}).encode(), data)
    try:
        content = from_bytes(file)
    except DamagedFile:
        return
    written = to_bytes(content)
    assert to_bytes(from_bytes(written)) == written


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"tree":' * 100_000,
        b'{"tree": ' + b'{"list":[' * 500 + b"1" + b"]}" * 500 + b', "arrays": []}',
        b'{"tree": {"tensor": 0}, "arrays": []}',
        b'{"tree": {"tensor": -1}, "arrays": [{"dtype":"bool","shape":[0],"order":[0]}]}',
        b'{"tree": {"tensor": true}, "arrays": [{"dtype":"bool","shape":[0],"order":[0]}]}',
        b'{"tree": {"tensor": 0, "list": []}, "arrays": []}',
        b'{"tree": {"pickle": "cos"}, "arrays": []}',
        b'{"tree": {"list": "abc"}, "arrays": []}',
        b'{"tree": {"list": {"a": 1}}, "arrays": []}',
        b'{"tree": {"dict": [1]}, "arrays": []}',
        b'{"tree": [1], "arrays": []}',
        b'{"tree": ' + b"9" * 10_000 + b', "arrays": []}',
        b'{"tree": 1}',
        b'{"tree": 1, "arrays": [{"dtype":"float32","shape":[1000000000000],"order":[0]}]}',
        b'{"tree": 1, "arrays": [{"dtype":"bool","shape":[0,4611686018427387904],"order":[0,1]},'
        b'{"dtype":"bool","shape":[0,9223372036854775808],"order":[0,1]}]}',
        b'{"tree": 1, "arrays": [{"dtype":"bool","shape":' + b"[" + b"1," * 99 + b"1]" + b"}]}",
    ],
    ids=lambda h: h[:40].decode(errors="replace"),
)
def test_hostile_headers(header: bytes) -> None:
    with pytest.raises(DamagedFile, match="damaged"):
        from_bytes(with_header(header))


def test_nothing_is_allocated_for_a_claim() -> None:
    entry = {"dtype": "float32", "shape": [2**40], "order": [0]}
    for shape in ([2**40], [11], [2**31, 2**31, 0, 3]):
        header = {"tree": 1, "arrays": [entry | {"shape": shape, "order": [*range(len(shape))]}]}
        with pytest.raises(DamagedFile, match=r"larger than the file|belong to no array"):
            from_bytes(with_header(json.dumps(header).encode(), bytes(40)))


def test_a_header_of_many_megabytes_is_not_parsed() -> None:
    header = b'{"tree": {"list": [' + b"[]," * 6_000_000 + b"1]}}"
    with pytest.raises(DamagedFile, match="a header of"):
        from_bytes(with_header(header))


def test_what_could_not_be_read_again_is_not_written() -> None:
    with pytest.raises(DiscorlError, match="too many parts"):
        to_bytes(["a long text" * 100] * 20_000)


def test_huge_claims_in_the_prefix() -> None:
    for claims in ((2**63, 0), (0, 2**63), (2**64 - 1, 2**64 - 1), (tree_file._CHUNK**2, 5)):
        with pytest.raises(DamagedFile, match="add up"):
            from_bytes(sealed(PREFIX.pack(tree_file.MAGIC, tree_file.VERSION, *claims)))


def test_another_version_is_refused_by_name() -> None:
    for version in (0, tree_file.VERSION + 1):
        with pytest.raises(DiscorlError, match=f"format version {version}") as error:
            from_bytes(with_header(b"anything", version=version))
        assert not isinstance(error.value, DamagedFile), "a folder must not pass over it"


def test_what_is_not_there_or_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(DiscorlError, match="no such file"):
        load(tmp_path / "a.dc")
    with pytest.raises(DiscorlError, match="cannot read"):
        load(tmp_path)


# --- the folder ----------------------------------------------------------------------------------


def test_the_last_few_are_kept(tmp_path: Path) -> None:
    checkpoints = CheckpointFolder(tmp_path / "c", keep=2)
    assert checkpoints.latest() is None
    for step in (8, 9, 10, 100):
        checkpoints.save(step, {"step": step})
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == [
        "checkpoint-10.dc",
        "checkpoint-100.dc",
    ]
    found = checkpoints.latest()
    assert found is not None and (found.step, found.content) == (100, {"step": 100})


def test_keep_must_be_sensible(tmp_path: Path) -> None:
    with pytest.raises(DiscorlError, match="at least 1"):
        CheckpointFolder(tmp_path, keep=0)


def test_a_step_back_gives_up_what_came_after(tmp_path: Path) -> None:
    checkpoints = CheckpointFolder(tmp_path, keep=3)
    for step in (1, 2, 3):
        checkpoints.save(step, step)
    checkpoints.save(2, "again")
    assert checkpoints.steps() == [1, 2]


def test_what_diverged_takes_the_place_of_nothing_good(tmp_path: Path) -> None:
    checkpoints = CheckpointFolder(tmp_path, keep=2)
    checkpoints.save(9, "bad", is_diverged=True)
    only = checkpoints.latest()
    assert only is not None and (only.step, only.is_diverged) == (9, True)
    for step in (10, 20):
        checkpoints.save(step, "good")
    for step in (21, 23, 22):
        checkpoints.save(step, "bad", is_diverged=True)
        assert checkpoints.steps() == [10, 20]
        assert checkpoints.steps(is_diverged=True) == [step]
    good, newest = checkpoints.latest(), checkpoints.latest(even_diverged=True)
    assert good is not None and (good.step, good.content, good.is_diverged) == (20, "good", False)
    assert newest is not None and (newest.step, newest.content) == (22, "bad")
    checkpoints.save(20, "bad", is_diverged=True)
    both = checkpoints.latest(even_diverged=True)
    assert both is not None and both.content == "good"
    checkpoints.save(30, "good")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-20.dc", "checkpoint-30.dc"]


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped"])
def test_a_damaged_newest_falls_back_with_a_warning(damage: str, tmp_path: Path) -> None:
    checkpoints = CheckpointFolder(tmp_path, keep=3)
    for step in (1, 2):
        checkpoints.save(step, {"x": torch.full((100,), float(step))})
    data = checkpoints.path(2).read_bytes()
    flipped = bytes([*data[:-40], data[-40] ^ 4, *data[-39:]])
    checkpoints.path(2).write_bytes(
        {"truncated": data[:-1], "empty": b"", "flipped": flipped}[damage]
    )
    with pytest.warns(UserWarning, match=r"checkpoint-2\.dc .*using the checkpoint before"):
        found = checkpoints.latest()
    assert found is not None and found.step == 1
    assert found.content["x"][0] == 1

    checkpoints.path(1).write_bytes(b"")
    with (
        pytest.warns(UserWarning, match="using the checkpoint"),
        pytest.raises(DiscorlError, match="all checkpoints"),
    ):
        checkpoints.latest()


def test_another_version_is_not_passed_over(tmp_path: Path) -> None:
    checkpoints = CheckpointFolder(tmp_path)
    checkpoints.save(1, 1)
    checkpoints.path(2).write_bytes(with_header(b"", version=99))
    with pytest.raises(DiscorlError, match="version 99"):
        checkpoints.latest()


FILL_THE_DISK = """
import resource, sys, torch
from pathlib import Path
from discorl.errors import DiscorlError
from discorl.runs.checkpoint import CheckpointFolder

checkpoints = CheckpointFolder(Path(sys.argv[1]), keep=1)
checkpoints.save(1, {"x": torch.ones(10)})
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))  # the system refuses larger files
try:
    checkpoints.save(2, {"x": torch.ones(1_000_000)})
except DiscorlError as e:
    print(e)
"""


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    done = run_python("-c", FILL_THE_DISK, tmp_path)
    assert "cannot write" in done.stdout and "free some space" in done.stdout, done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-1.dc"], "and leaves no half file"
    found = CheckpointFolder(tmp_path).latest()
    assert found is not None and found.step == 1


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DiscorlError, match="cannot create the folder"):
        CheckpointFolder(tmp_path / "file" / "c").save(1, 1)
    with pytest.raises(DiscorlError, match="cannot write"):
        save(tmp_path / "gone" / "a.dc", 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_keeps_what_it_has(tmp_path: Path) -> None:
    checkpoints = CheckpointFolder(tmp_path / "c")
    checkpoints.save(1, 1)
    checkpoints.folder.chmod(0o500)
    try:
        with pytest.raises(DiscorlError, match="Permission denied"):
            checkpoints.save(2, 2)
        found = checkpoints.latest()
        assert found is not None and found.step == 1
    finally:
        checkpoints.folder.chmod(0o700)


def test_thousands_of_damaged_files_on_disk() -> None:
    """As above, through the file system and with several kinds of damage in one file."""
    noise = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.dc"
        for _ in range(1000):
            data = bytearray(WHOLE)
            for _ in range(noise.randint(1, 5)):
                data[noise.randrange(len(data))] = noise.randrange(256)
            del data[noise.randrange(len(data)) :]
            path.write_bytes(data)
            with pytest.raises(DamagedFile):
                load(path)
