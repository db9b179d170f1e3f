"""Rule files: whole ones round-trip, damaged ones are refused with the damage named."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from discorl.errors import DiscorlError
from discorl.nets.meta_net import MetaNetSizes
from discorl.rules import DiscoRule
from discorl.rules.disco import DiscoSettings
from discorl.rules.format import arrays_to_params, infer_sizes, params_to_arrays, write_archive
from discorl.rules.store import load_rule, save_rule
from discorl.rules.values import ReturnSettings, ValueHead
from tests.builders import (
    ABLATIONS,
    DEEP_SIZES,
    GOLDEN,
    SMALL_SIZES,
    assert_bit_equal,
    random_rule_params,
    small_disco,
    small_disco_without,
    write_small_rule,
)
from tests.golden.files import group, load

Y_TARGET = "lstm/linear_2/w"
SHAPES_OF_SIZES = [SMALL_SIZES, DEEP_SIZES, MetaNetSizes(prediction=3, hidden=2, lifetime_hidden=1)]


@pytest.fixture
def rule_file(tmp_path: Path) -> Path:
    return write_small_rule(tmp_path / "rule.npz")


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def write_members(path: Path, content: dict[str, bytes], comment: bytes = b"") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
        archive.comment = comment
    return path


def comment_of(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.comment)


def npy(array: np.ndarray, allow_pickle: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=allow_pickle)
    return buffer.getvalue()


def with_array(path: Path, name: str, data: bytes | np.ndarray) -> Path:
    """The same file with another content of one array."""
    new = npy(data) if isinstance(data, np.ndarray) else data
    return write_members(path, members(path) | {f"{name}.npy": new})


# --- whole files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", SHAPES_OF_SIZES, ids=["small", "deep", "tiny"])
def test_round_trip_is_bit_equal(sizes: MetaNetSizes, tmp_path: Path) -> None:
    rule = DiscoRule(
        sizes,
        ValueHead(31, 15.0, squashed=False),
        ReturnSettings(0.9, 0.8, 0.7),
        DiscoSettings(1, 2, 3, 4, 5, target_rate=0.25),
    )
    params = random_rule_params(rule)
    save_rule(tmp_path / "rule.npz", rule, params, {"steps": 3, "by": "a test"})
    loaded = load_rule(tmp_path / "rule.npz")
    assert loaded.rule == rule
    assert loaded.params.keys() == params.keys()
    assert_bit_equal(loaded.params, {k: params[k] for k in loaded.params})
    assert loaded.provenance == {"steps": 3, "by": "a test"}
    assert loaded.name == "rule"
    assert loaded.num_params == sum(p.numel() for p in params.values())


@pytest.mark.parametrize("sizes", SHAPES_OF_SIZES, ids=["small", "deep", "tiny"])
def test_sizes_are_inferred_from_shapes(sizes: MetaNetSizes) -> None:
    assert infer_sizes(params_to_arrays(random_rule_params(DiscoRule(sizes)))) == sizes


@pytest.mark.parametrize("sizes", SHAPES_OF_SIZES, ids=["small", "deep", "tiny"])
@pytest.mark.parametrize("parts", ABLATIONS.values(), ids=ABLATIONS)
def test_rules_without_a_part_round_trip(
    parts: tuple[str, ...], sizes: MetaNetSizes, tmp_path: Path
) -> None:
    rule = small_disco_without(*parts, sizes=sizes)
    params = random_rule_params(rule)
    save_rule(tmp_path / "rule.npz", rule, params, {})
    loaded = load_rule(tmp_path / "rule.npz")
    assert loaded.rule == rule
    assert loaded.params.keys() == params.keys()
    assert_bit_equal(loaded.params, {k: params[k] for k in loaded.params})
    assert comment_of(tmp_path / "rule.npz")["discorl_rule"] == 2  # earlier versions must refuse it


def test_files_of_whole_rules_are_those_of_the_first_version(rule_file: Path) -> None:
    """No entry that version 0.2.0 does not write, so that equal rules stay equal files."""
    comment = comment_of(rule_file)
    assert comment.keys() == {
        *("discorl_rule", "value_head", "returns", "weights", "target_rate"),
        *("mask_episode_starts", "provenance"),
    }
    assert comment["discorl_rule"] == 1


@pytest.mark.parametrize("changes", [{"value_head": None}, {"discorl_rule": 2, "value_head": None}])
def test_refuses_a_whole_rule_that_says_it_sees_no_values(
    rule_file: Path, changes: dict[str, Any]
) -> None:
    comment = comment_of(rule_file) | changes
    path = write_members(rule_file, members(rule_file), json.dumps(comment).encode())
    assert_refused(path, "shape")


def test_refuses_a_whole_rule_that_lost_a_part(rule_file: Path) -> None:
    """All arrays of y and z are gone, but other arrays have room for them."""
    gone = {f"{name}.npy" for name in params_to_arrays(random_rule_params(small_disco()))}
    rule = small_disco_without("predictions")
    gone -= {f"{name}.npy" for name in params_to_arrays(random_rule_params(rule))}
    assert len(gone) == 20
    content = {k: v for k, v in members(rule_file).items() if k not in gone}
    assert_refused(write_members(rule_file, content), "shape", "the others imply")


def test_default_sizes_are_those_of_disco103() -> None:
    arrays = params_to_arrays(DiscoRule().init_params(torch.Generator()))
    assert len(arrays) == 42
    assert sum(a.size for a in arrays.values()) == 754_778


def test_arrays_have_the_names_and_layouts_of_the_reference() -> None:
    """Its own small rule goes in and comes out as it was."""
    reference = group(load(GOLDEN / "disco_small_learner.npz"), "meta_params")
    sizes, params = arrays_to_params(reference)
    assert sizes == MetaNetSizes(
        prediction=12,
        hidden=16,
        embedding=(8, 1),
        action_channels=(6, 2),
        policy_channels=(5,),
        lifetime_hidden=9,
        lifetime_embedding=(7,),
        lifetime_prediction_embedding=(8, 1),
        lifetime_action_channels=(6, 2),
    )
    ours = params_to_arrays(params)
    assert ours.keys() == reference.keys()
    for name, array in reference.items():
        np.testing.assert_array_equal(ours[name], array, strict=True)


def test_files_open_with_numpy_alone(rule_file: Path) -> None:
    expected = params_to_arrays(load_rule(rule_file).params)
    with np.load(rule_file, allow_pickle=False) as archive:
        assert set(archive.files) == set(expected)
        for name in archive.files:
            np.testing.assert_array_equal(archive[name], expected[name], strict=True)


def test_equal_rules_give_equal_bytes(tmp_path: Path) -> None:
    a, b = (write_small_rule(tmp_path / name).read_bytes() for name in ("a.npz", "b.npz"))
    assert a == b
    assert a != write_small_rule(tmp_path / "c.npz", seed=1).read_bytes()


def test_files_that_numpy_wrote_are_read(rule_file: Path, tmp_path: Path) -> None:
    """Without a comment the settings are Disco103's. Fortran order is an order like any other."""
    loaded = load_rule(rule_file)
    arrays = {k: np.asfortranarray(v) for k, v in params_to_arrays(loaded.params).items()}
    np.savez_compressed(tmp_path / "numpy.npz", allow_pickle=False, **arrays)  # pyright: ignore[reportArgumentType]
    again = load_rule(tmp_path / "numpy.npz")
    assert_bit_equal(again.params, loaded.params)
    assert again.rule == DiscoRule(SMALL_SIZES)


@pytest.mark.disco103
def test_the_public_file() -> None:
    loaded = load_rule("disco103")
    assert len(loaded.params) == 42
    assert loaded.num_params == 754_778
    assert loaded.rule == DiscoRule()


@pytest.mark.disco103
def test_the_public_file_survives_export(tmp_path: Path) -> None:
    loaded = load_rule("disco103")
    save_rule(tmp_path / "copy.npz", loaded.rule, loaded.params, {})
    with np.load(loaded.path) as theirs, np.load(tmp_path / "copy.npz") as ours:
        assert set(theirs.files) == set(ours.files)
        for name in theirs.files:
            np.testing.assert_array_equal(ours[name], theirs[name], strict=True)


# --- damaged files -------------------------------------------------------------------------------


def assert_refused(path: Path, *words: str) -> None:
    with pytest.raises(DiscorlError) as caught:
        load_rule(path)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_refuses_a_missing_array(rule_file: Path) -> None:
    for name in params_to_arrays(load_rule(rule_file).params):
        content = members(rule_file)
        del content[f"{name}.npy"]
        path = write_members(rule_file.with_name("less.npz"), content)
        with pytest.raises(DiscorlError, match=r"missing|shape|no rule has"):
            load_rule(path)


def test_refusing_a_missing_array_names_it(rule_file: Path) -> None:
    content = members(rule_file)
    del content[f"{Y_TARGET}.npy"]
    assert_refused(write_members(rule_file, content), "missing", Y_TARGET)


def test_refuses_an_extra_array(rule_file: Path) -> None:
    assert_refused(with_array(rule_file, "lstm/odd", np.zeros(2, np.float32)), "lstm/odd")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_refuses_values_that_are_not_finite(rule_file: Path, value: float) -> None:
    array = np.zeros((5, 6), np.float32)
    array[4, 5] = value
    assert_refused(with_array(rule_file, Y_TARGET, array), Y_TARGET, "NaN or infinity")


@pytest.mark.parametrize("shape", [(6, 5), (4, 6), (30,), (1, 5, 6), (1, 1, 5, 6), (0, 6), ()])
def test_refuses_a_wrong_shape(rule_file: Path, shape: tuple[int, ...]) -> None:
    assert_refused(with_array(rule_file, Y_TARGET, np.zeros(shape, np.float32)), Y_TARGET, "shape")


@pytest.mark.parametrize("shape", [(), (0,), (6, 0), (0, 6), (1, 6)])
def test_refuses_a_wrong_shape_of_what_sizes_are_read_from(
    rule_file: Path, shape: tuple[int, ...]
) -> None:
    path = with_array(rule_file, "lstm/linear_2/b", np.zeros(shape, np.float32))
    assert_refused(path, "shape", "lstm/linear_2")


def test_refuses_a_huge_shape_that_holds_nothing(rule_file: Path) -> None:
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 2305843009213693952), }"
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
    assert_refused(with_array(rule_file, "lstm/linear_2/b", data), "lstm/linear_2/b")


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "complex64", ">f4", "S4", "bool"])
def test_refuses_a_wrong_type(rule_file: Path, dtype: str) -> None:
    assert_refused(with_array(rule_file, Y_TARGET, np.zeros((5, 6), dtype)), Y_TARGET, "float32")


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def test_never_unpickles(rule_file: Path, tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    array = np.empty(1, object)
    array[0] = Bomb(marker)
    assert_refused(with_array(rule_file, Y_TARGET, npy(array, allow_pickle=True)), Y_TARGET)
    (tmp_path / "bare.npz").write_bytes(pickle.dumps(Bomb(marker)))
    assert_refused(tmp_path / "bare.npz", "not a rule file")
    assert not marker.exists()
    # The bomb is live: whoever unpickles the array does set it off.
    np.load(io.BytesIO(npy(array, allow_pickle=True)), allow_pickle=True)
    assert marker.exists()


def test_refuses_a_truncated_file(rule_file: Path) -> None:
    data = rule_file.read_bytes()
    for length in (0, 1, 100, len(data) // 2, len(data) - 1):
        rule_file.write_bytes(data[:length])
        assert_refused(rule_file, "rule.npz")


def test_refuses_a_truncated_array(rule_file: Path) -> None:
    whole = members(rule_file)[f"{Y_TARGET}.npy"]
    for cut in (whole[:-4], whole[:-1], whole[:20], whole[:3], b"", whole + b"\0\0\0\0"):
        assert_refused(with_array(rule_file, Y_TARGET, cut), Y_TARGET)


def test_refuses_an_array_that_is_there_twice(rule_file: Path) -> None:
    content = members(rule_file)
    with zipfile.ZipFile(rule_file, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(f"{Y_TARGET}.npy", content[f"{Y_TARGET}.npy"])
    assert_refused(rule_file, Y_TARGET, "twice")


def test_refuses_an_oversized_claim(rule_file: Path) -> None:
    """A header may claim any size; nothing may be allocated for it."""
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000), }"
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + b"\0" * 64
    assert_refused(with_array(rule_file, Y_TARGET, data), Y_TARGET, "oversized")


def test_refuses_an_oversized_directory_entry(rule_file: Path) -> None:
    """The archive's directory says that a small member unpacks to 3 GB."""
    data = bytearray(rule_file.read_bytes())
    entry = data.index(b"PK\x01\x02")
    data[entry + 24 : entry + 28] = struct.pack("<I", 3 * 2**30)
    rule_file.write_bytes(bytes(data))
    assert_refused(rule_file, "oversized")


def test_refuses_a_bomb_of_zeros(rule_file: Path) -> None:
    with zipfile.ZipFile(rule_file, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("big.npy", bytes(300 * 2**20))
    assert rule_file.stat().st_size < 2**20
    assert_refused(rule_file, "big", "oversized")


def test_refuses_too_many_arrays(rule_file: Path) -> None:
    array = npy(np.zeros(1, np.float32))
    path = write_members(rule_file, {f"x{i}.npy": array for i in range(1001)})
    assert_refused(path, "1001 entries")


def test_refuses_a_member_that_is_no_array(rule_file: Path) -> None:
    path = write_members(rule_file, members(rule_file) | {"readme.txt": b"hello"})
    assert_refused(path, "readme.txt")


def test_refuses_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("weights")
    (tmp_path / "folder.npz").mkdir()
    assert_refused(tmp_path / "text.npz", "not a rule file")
    assert_refused(tmp_path / "folder.npz", "folder")
    assert_refused(tmp_path / "missing.npz", "no such rule file")


@pytest.mark.parametrize(
    "comment",
    [
        b"not json",
        b"[1, 2]",
        b"\xff\xfe",
        b"[" * 20_000,
        b'{"discorl_rule": 99}',
        b'{"target_rate": 0.5}',
        b'{"discorl_rule": 1, "value_head": 3}',
        b'{"discorl_rule": 1, "value_head": {"odd": 3}}',
        b'{"discorl_rule": 1, "value_head": {"num_bins": "many"}}',
        b'{"discorl_rule": 1, "value_head": {"num_bins": -5}}',
        b'{"discorl_rule": 1, "value_head": {"num_bins": 2.5}}',
        b'{"discorl_rule": 1, "value_head": {"num_bins": 1e400}}',
        b'{"discorl_rule": 1, "value_head": {"num_bins": 1' + b"0" * 400 + b"}}",
        b'{"discorl_rule": 1, "value_head": {"max_abs": null}}',
        b'{"discorl_rule": 1, "returns": {"discount": NaN}}',
        b'{"discorl_rule": 1, "weights": {"pi": [1]}}',
        b'{"discorl_rule": 1, "target_rate": "fast"}',
        b'{"discorl_rule": 1, "provenance": ["someone"]}',
        b'{"discorl_rule": 2, "auxiliary": 0}',
        b'{"discorl_rule": 2, "returns": null}',
    ],
    ids=lambda c: c[:60].decode("latin-1"),
)
def test_refuses_broken_settings(rule_file: Path, comment: bytes) -> None:
    assert_refused(write_members(rule_file, members(rule_file), comment), "rule.npz")


def load_or_refuse(path: Path) -> None:
    """Either is fine; any other exception is not."""
    message, params = path.name, {}
    try:
        params = load_rule(path).params
    except DiscorlError as e:
        message = str(e)
    assert path.name in message
    assert all(p.isfinite().all() for p in params.values())


@settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8
    ),
    cut=st.one_of(st.none(), st.floats(0, 1)),
)
@example(changes=[(0.0, 0)], cut=None)
def test_any_damage_is_refused_or_harmless(
    changes: list[tuple[float, int]], cut: float | None, rule_file: Path
) -> None:
    """Whatever bytes change, the file loads or a DiscorlError says why not, and nothing else."""
    data = bytearray(rule_file.read_bytes())
    for place, value in changes:
        data[int(place * len(data))] = value
    path = rule_file.with_name("damaged.npz")
    path.write_bytes(bytes(data if cut is None else data[: int(cut * len(data))]))
    load_or_refuse(path)


@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_damage_of_an_array_is_refused_or_harmless(
    rule_file: Path, data: st.DataObject
) -> None:
    """The same past the archive's checksums: the bytes of an array, header and all."""
    content = members(rule_file)
    name = data.draw(st.sampled_from(sorted(content)))
    array = bytearray(content[name])
    header_size = 128
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, min(len(array), header_size) - 1))
        array[place] = data.draw(st.one_of(st.integers(0, 255), st.sampled_from(b"0123456789(),")))
    path = write_members(rule_file.with_name("damaged.npz"), content | {name: bytes(array)})
    load_or_refuse(path)


# --- writing -------------------------------------------------------------------------------------


def test_a_failing_write_leaves_the_old_file(rule_file: Path) -> None:
    before = rule_file.read_bytes()
    params = random_rule_params(small_disco(), seed=5)
    with pytest.raises(TypeError):
        write_archive(rule_file, params, {"a set is not JSON": {1, 2}})
    with pytest.raises(KeyError):
        write_archive(rule_file, params | {"odd.name": torch.zeros(1)}, {})
    assert rule_file.read_bytes() == before
    assert list(rule_file.parent.iterdir()) == [rule_file], "no temporary file is left"


def test_writing_creates_folders(tmp_path: Path) -> None:
    path = write_small_rule(tmp_path / "a" / "b" / "rule.npz")
    assert json.loads(zipfile.ZipFile(path).comment)["provenance"] == {"origin": "a test"}


@pytest.mark.parametrize(
    "group, name, value",
    [
        *(("returns", name, x) for name in ("discount", "lambda_") for x in (-3, 1.5, 1e400)),
        ("returns", "moment_decay", -0.1),
        *(("weights", name, x) for name in ("pi", "q") for x in (-1, float("nan"), 1e300)),
        *(("value_head", "num_bins", x) for x in (1, 0, -5, 10**9, 10**400)),
        *(("value_head", "max_abs", x) for x in (0, -1, float("inf"), 1e300)),
        *(("", "target_rate", x) for x in (-0.5, 2, None)),
    ],
)
def test_settings_out_of_range_are_refused(
    group: str, name: str, value: Any, tmp_path: Path
) -> None:
    path = write_small_rule(tmp_path / "rule.npz")
    with zipfile.ZipFile(path, "a") as archive:
        comment = json.loads(archive.comment)
        (comment[group] if group else comment)[name] = value
        archive.comment = json.dumps(comment).encode()
    with pytest.raises(DiscorlError, match="its settings are invalid") as error:
        load_rule(path)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400 + len(str(path))
