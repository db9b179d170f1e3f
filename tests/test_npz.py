"""Archives that unpack to more than they should are refused before anything is allocated."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from discorl import npz
from discorl.errors import DiscorlError
from discorl.rules.store import load_rule
from discorl.runs.files import load_params, save_params
from tests.builders import assert_bit_equal


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=array.dtype.hasobject)
    return buffer.getvalue()


def write_zip(path: Path, content: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def assert_refused(path: Path, says: str) -> None:
    for read in (load_rule, load_params):
        tracemalloc.start()
        with pytest.raises(DiscorlError, match=says) as error:
            read(path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 60 * 2**20
        assert "\n" not in str(error.value)


def test_a_bomb(tmp_path: Path) -> None:
    """100 MB of zeros in a hundred kilobytes."""
    zeros = npy(np.zeros(25 * 2**20, np.float32))
    path = write_zip(tmp_path / "bomb.npz", {"a.npy": zeros}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2**20
    assert_refused(path, "oversized")


def test_many_small_bombs(tmp_path: Path) -> None:
    zeros = npy(np.zeros(2**20, np.float32))
    content = {f"{i}.npy": zeros for i in range(20)}
    assert_refused(write_zip(tmp_path / "b.npz", content, zipfile.ZIP_DEFLATED), "oversized")


def test_a_list_of_entries_without_end(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "many.npz", {f"{i:040}.npy": b"" for i in range(15_000)})
    assert_refused(path, "list of entries")


def test_more_entries_than_a_rule_has(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "many.npz", {f"{i}.npy": b"" for i in range(12_000)})
    assert_refused(path, "12000 entries, too many")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions(method: int, tmp_path: Path) -> None:
    content = {"a.npy": npy(np.zeros(3, np.float32))}
    assert_refused(write_zip(tmp_path / "a.npz", content, method), "compressed")


@pytest.mark.parametrize(
    "array",
    [
        np.array([None]),
        np.zeros(2, "U4"),
        np.zeros(2, ">f4"),
        np.zeros(2, "f4,i4"),
        np.zeros(2, "c8"),
    ],
    ids=lambda array: str(array.dtype),
)
def test_arrays_of_other_kinds(array: np.ndarray, tmp_path: Path) -> None:
    assert_refused(write_zip(tmp_path / "a.npz", {"a.npy": npy(array)}), "array a: ")


def header(shape: str) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    "data",
    [
        *(header("(1000000000000,)"), header("(-1,)"), header("(2,)") + b"1234567"),
        *(header("(1,)") + b"12345", header("(True,)") + b"1234", header("('a',)")),
        *(header("(0, " + "9" * 30 + ")"), header("(" + "(" * 3000), b"\x93NUMPY", b""),
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
    ],
    ids=range(11),
)
def test_arrays_that_lie(data: bytes, tmp_path: Path) -> None:
    assert_refused(write_zip(tmp_path / "a.npz", {"a.npy": data}), "array a: ")


def test_an_entry_that_appears_twice(tmp_path: Path) -> None:
    data = npy(np.zeros(3, np.float32))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", data)
        with pytest.warns(match="Duplicate"):
            archive.writestr("a.npy", data)
    assert_refused(tmp_path / "a.npz", "appears twice")


def test_a_file_larger_than_any_agent(tmp_path: Path) -> None:
    with (tmp_path / "a.npz").open("wb") as file:
        file.truncate(2**40)
    assert_refused(tmp_path / "a.npz", "too large")


def test_agents_of_every_layout_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "_CHUNK", 1000)
    params = {
        "large": torch.randn(100, 90),
        "transposed": torch.randn(70, 80).T,
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.zeros(0, 3),
    }
    save_params(tmp_path / "agent.npz", params)
    loaded = load_params(tmp_path / "agent.npz")
    assert_bit_equal(loaded, params)
    assert {k: x.dtype for k, x in loaded.items()} == {k: x.dtype for k, x in params.items()}


def test_archives_that_numpy_compressed_are_read(tmp_path: Path) -> None:
    array = np.random.default_rng(0).random((300, 40), np.float32)
    np.savez_compressed(tmp_path / "agent.npz", a=array, b=np.asfortranarray(array))
    loaded = load_params(tmp_path / "agent.npz")
    np.testing.assert_array_equal(loaded["a"].numpy(), array)
    np.testing.assert_array_equal(loaded["b"].numpy(), array)
