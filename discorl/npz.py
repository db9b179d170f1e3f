"""Reading npz archives that anyone may have made, checked before anything is allocated."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from discorl.bounded import Unreadable, open_regular
from discorl.errors import DiscorlError

MAX_DIRECTORY_BYTES = 2**20
"""An archive's list of entries; zipfile would read millions of them before it returns."""
MAX_HEADER_BYTES = 2**14
"""What an array says about itself."""
FREE_BYTES, MAX_EXPANSION = 16 * 2**20, 10
"""An archive may unpack to so many times its size, and small ones to more."""
_CHUNK = 2**18

CheckArray = Callable[[np.dtype, tuple[int, ...]], None]
"""Raises ``ValueError`` if the file should have no array of this type and shape."""


def read_npz(
    path: Path, what: str, max_bytes: int, max_arrays: int, check: CheckArray
) -> tuple[dict[str, np.ndarray], bytes]:
    """The arrays of an archive by name, and its comment. ``what`` says what it should be.

    At most ``max_bytes`` are unpacked, and no more than a multiple of the file's own size. Raises
    ``OSError`` as ``open`` does, and otherwise a ``DiscorlError`` that says what is wrong.
    """
    with open_regular(path, max_bytes) as file:
        size = file.seek(0, io.SEEK_END)
        budget = min(max_bytes, FREE_BYTES + MAX_EXPANSION * size)
        try:
            with zipfile.ZipFile(_SmallReads(file)) as archive:  # pyright: ignore[reportArgumentType]
                infos = archive.infolist()
                if len(infos) > max_arrays:
                    raise Unreadable(f"it has {len(infos)} entries, too many for {what}")
                arrays: dict[str, np.ndarray] = {}
                for info in infos:
                    name = info.filename.removesuffix(".npy")
                    if name in arrays:
                        raise Unreadable(f"array {name} appears twice")
                    try:
                        arrays[name] = _read_array(archive, info, budget, check)
                    except Exception as e:
                        raise Unreadable(f"array {name}: {_said(e)}") from None
                    budget -= arrays[name].nbytes
                return arrays, archive.comment
        except Unreadable as e:
            raise DiscorlError(f"{path}: {e}") from None
        except Exception as e:  # zipfile raises a dozen kinds on damaged archives
            raise DiscorlError(f"{path} is not {what}, or is damaged: {_said(e)}") from None


def _read_array(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, budget: int, check: CheckArray
) -> np.ndarray:
    """One array, without trusting its header; an exception of any kind says what is wrong."""
    if not info.filename.endswith(".npy"):
        raise ValueError("it is not an array")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("it is compressed in a way that NumPy does not use")
    if info.file_size > budget:
        raise ValueError(f"it claims {info.file_size} bytes: oversized")
    with archive.open(info) as stream:
        start = stream.read(min(MAX_HEADER_BYTES, info.file_size))
        header = io.BytesIO(start)
        is_first = npy.read_magic(header) == (1, 0)
        read_header = npy.read_array_header_1_0 if is_first else npy.read_array_header_2_0
        shape, fortran_order, dtype = read_header(header)
        if any(type(n) is not int or n < 0 for n in shape):
            raise ValueError(f"no array has the shape {list(shape)!s:.60}")
        if dtype.hasobject:
            raise ValueError("its numbers are Python objects, which are never unpickled")
        check(dtype, shape)
        expected = dtype.itemsize * math.prod(shape)
        if (found := info.file_size - header.tell()) != expected:
            raise ValueError(f"{found} bytes, not {expected}: truncated or oversized")
        array = np.empty(shape, dtype, order="F" if fortran_order else "C")
        _fill(array, start[header.tell() :], stream)
    return array


def _fill(array: np.ndarray, start: bytes, stream: IO[bytes]) -> None:
    """The numbers, of which ``start`` are the first bytes, piece by piece."""
    flat: Any = array.reshape(-1, order="A").view(np.uint8)
    flat[: len(start)] = np.frombuffer(start, np.uint8)
    done = len(start)
    while piece := stream.read(_CHUNK):
        if done + len(piece) > flat.size:
            raise ValueError(f"more than {flat.size} bytes: oversized")
        flat[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
        done += len(piece)
    if done < flat.size:
        raise ValueError(f"{done} bytes, not {flat.size}: truncated")


def _said(e: Exception) -> str:
    return str(e).partition("\n")[0][:200] or type(e).__name__


class _SmallReads:
    """A file for zipfile that refuses to read much at once, as for a huge list of entries."""

    def __init__(self, file: IO[bytes]) -> None:
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if size > MAX_DIRECTORY_BYTES:
            raise Unreadable(f"its list of entries has {size} bytes, too many")
        return self._file.read(MAX_DIRECTORY_BYTES if size < 0 else size)
