"""One file for a tree of tensors and plain values, sealed by a checksum. Nothing is unpickled.

Layout, integers little-endian:

    magic | version u32 | header length u64 | data length u64 | header | data | sha256 of all before

The header is a JSON text: the tree, with numbers in place of arrays, and the kind, shape and order
of each array. The data are the arrays' bytes, one after the other.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import math
import struct
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from discorl.atomic import atomic_file
from discorl.bounded import Unreadable, open_regular, parse_json
from discorl.errors import DiscorlError, is_out_of_memory

MAGIC = b"discorl\x00"
VERSION = 1
MAX_FILE_BYTES = 2**42
MAX_HEADER_BYTES = 16 * 2**20
"""Of the JSON text, which takes up to 40 times as much memory. A run's takes a few kilobytes, and a
discovery's 25 for each group of agents."""
MAX_DIMENSIONS = 32
MAX_DEPTH = 200
"""Of the JSON text, which has two levels for each of the tree."""
_PREFIX = struct.Struct("<8sIQQ")
_SEAL_BYTES = hashlib.sha256().digest_size
_CHUNK = 2**20

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
        *(torch.complex64, torch.complex128, torch.bool, torch.uint8, torch.uint16, torch.uint32),
        *(torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64),
    )
}


class DamagedFile(DiscorlError):  # noqa: N818 - reads as a sentence where it is caught
    """The file is truncated or altered, or was never one of ours."""


def save(path: Path, content: Any) -> None:
    """Write a tree to ``path``, whole or not at all.

    A tree is made of dicts with names for keys, lists, tuples, dataclasses, tensors, NumPy arrays
    and scalars, ``torch.Generator``, int, float, bool, str and None.
    """
    arrays: list[Tensor] = []
    header = _header(content, arrays)
    try:
        with atomic_file(path) as file:
            _write(file, header, arrays)
    except OSError as e:
        raise DiscorlError(
            f"cannot write {path}: {e.strerror or e}; free some space or check the "
            "folder's permissions. What was saved before is unchanged"
        ) from None


def load(path: Path, without: Collection[str] = ()) -> Any:
    """The tree in ``path`` made of plain dicts, lists, tuples, tensors and values.

    Dataclasses and named tuples come back as dicts, generators as the tensor of their state; see
    ``restore``. Parts whose name is in ``without`` are left out, and need no memory.
    """
    try:
        with open_regular(path, MAX_FILE_BYTES) as file:
            return _read(file, str(path), without)
    except FileNotFoundError:
        raise DiscorlError(f"no such file: {path}") from None
    except Unreadable as e:
        raise DamagedFile(f"cannot read a checkpoint: {e}") from None
    except OSError as e:
        raise DamagedFile(f"cannot read {path}: {e.strerror or e}") from None


def to_bytes(content: Any) -> bytes:
    """What ``save`` would write, to send it elsewhere."""
    arrays: list[Tensor] = []
    header = _header(content, arrays)
    buffer = io.BytesIO()
    _write(buffer, header, arrays)
    return buffer.getvalue()


def from_bytes(data: bytes) -> Any:
    """The tree that ``to_bytes`` was given, as ``load`` returns it."""
    return _read(io.BytesIO(data), "the message")


# --- writing -------------------------------------------------------------------------------------


def _header(content: Any, arrays: list[Tensor]) -> bytes:
    """The JSON text, with the arrays to be written after it collected in ``arrays``."""
    described: list[dict[str, Any]] = []

    def add(x: Tensor) -> int:
        x = x.detach().cpu()
        order = sorted(range(x.ndim), key=lambda d: -x.stride(d))
        # The order in memory is kept: sums over a transposed matrix round differently.
        if not x.permute(order).is_contiguous():
            x, order = x.contiguous(), list(range(x.ndim))
        name = str(x.dtype).removeprefix("torch.")
        if name not in _DTYPES:
            raise DiscorlError(f"tensors of type {name} cannot be saved")
        described.append({"dtype": name, "shape": list(x.shape), "order": order})
        arrays.append(x.permute(order))
        return len(arrays) - 1

    encoded = _encode(content, add, "")
    text = json.dumps({"tree": encoded, "arrays": described}, separators=(",", ":")).encode()
    if len(text) > MAX_HEADER_BYTES:  # it could not be read again
        raise DiscorlError(f"a tree of {len(arrays)} arrays has too many parts to be saved")
    return text


def _encode(x: Any, add: Callable[[Tensor], int], where: str) -> Any:
    if x is None or type(x) in (bool, int, float, str):
        return x
    if (parts := named_parts(x)) is not None:
        for key in parts:
            if not isinstance(key, str):
                raise DiscorlError(f"{where or 'the tree'} has the key {key!r}, but keys are names")
        return {"dict": {k: _encode(v, add, below(where, k)) for k, v in parts.items()}}
    if isinstance(x, list | tuple):
        kind = "tuple" if isinstance(x, tuple) else "list"
        return {kind: [_encode(v, add, f"{where}[{i}]") for i, v in enumerate(x)]}
    kind, tensor = _as_tensor(x, where)
    return {kind: add(tensor)}


def named_parts(x: Any) -> dict[str, Any] | None:
    """What a dict, named tuple or dataclass is made of; None for anything else."""
    if isinstance(x, dict):
        return x
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return x._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return {f.name: getattr(x, f.name) for f in dataclasses.fields(x)}
    return None


def below(where: str, name: str) -> str:
    """The place of a part, for messages."""
    return f"{where}.{name}" if where else name


def _as_tensor(x: Any, where: str) -> tuple[str, Tensor]:
    """A leaf's kind and its numbers."""
    if isinstance(x, Tensor):
        return "tensor", x
    if isinstance(x, torch.Generator):
        return "tensor", x.get_state()
    if not isinstance(x, np.ndarray | np.generic):
        raise DiscorlError(f"{where or 'the tree'} is a {type(x).__name__}, which cannot be saved")
    try:
        array = torch.from_numpy(np.array(x, dtype=x.dtype.newbyteorder("="), order="C"))
    except TypeError:
        raise DiscorlError(f"{where}: NumPy type {x.dtype} cannot be saved") from None
    return ("scalar" if isinstance(x, np.generic) else "array"), array


def _write(file: IO[bytes], header: bytes, arrays: list[Tensor]) -> None:
    seal = hashlib.sha256()

    def put(data: bytes | memoryview) -> None:
        seal.update(data)
        file.write(data)

    num_bytes = sum(x.numel() * x.element_size() for x in arrays)
    put(_PREFIX.pack(MAGIC, VERSION, len(header), num_bytes))
    put(header)
    for x in arrays:
        if x.numel():
            put(_memory(x))
    file.write(seal.digest())


def _memory(x: Tensor) -> memoryview:
    """The bytes of a contiguous tensor, in place."""
    array: Any = x.reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)


# --- reading -------------------------------------------------------------------------------------


def _read(file: IO[bytes], name: str, without: Collection[str] = ()) -> Any:
    """Check first, believe later: sizes against the file's, then the seal, then the header."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    prefix = file.read(_PREFIX.size)
    if not prefix.startswith(MAGIC[: len(prefix)]) or len(prefix) < len(MAGIC):
        raise DamagedFile(f"{name} is not a checkpoint")
    _check_seal(file, size, name)
    magic, version, header_bytes, data_bytes = _PREFIX.unpack(prefix)
    del magic
    if version != VERSION:
        raise DiscorlError(
            f"{name} has format version {version}, but this discorl reads {VERSION}: "
            "use the version of discorl that wrote it"
        )
    if _PREFIX.size + header_bytes + data_bytes + _SEAL_BYTES != size:
        raise DamagedFile(f"{name} is damaged: its sizes do not add up")
    if header_bytes > MAX_HEADER_BYTES:
        raise DamagedFile(f"{name} is damaged: a header of {header_bytes} bytes")
    file.seek(_PREFIX.size)
    try:
        header = parse_json(file.read(header_bytes), MAX_DEPTH)
        places = _places(file.tell(), header["arrays"], data_bytes)
        # Each is read once, however often the tree may name it.
        arrays = cache(lambda i: _read_array(file, places[i], header["arrays"][i]))
        return _decode(header["tree"], arrays, without)
    except Exception as e:  # of any kind: what Python and torch say about impossible values
        if is_out_of_memory(e):
            raise
        raise DamagedFile(f"{name} is damaged: its header makes no sense ({e!r:.80})") from None


def _check_seal(file: IO[bytes], size: int, name: str) -> None:
    remaining = size - _SEAL_BYTES
    if remaining < _PREFIX.size:
        raise DamagedFile(f"{name} is damaged: truncated to {size} bytes")
    seal = hashlib.sha256()
    file.seek(0)
    while remaining > 0:
        chunk = file.read(min(_CHUNK, remaining))
        if not chunk:
            break
        seal.update(chunk)
        remaining -= len(chunk)
    if remaining or file.read(_SEAL_BYTES) != seal.digest():
        raise DamagedFile(f"{name} is damaged: it is truncated, or its checksum does not match")


def _places(start: int, described: Any, num_bytes: int) -> list[int]:
    """Where in the file each array begins; none is larger than what the file still holds."""
    places = []
    for entry in described:
        dtype, shape, order = _DTYPES[entry["dtype"]], entry["shape"], entry["order"]
        if len(shape) > MAX_DIMENSIONS or sorted(order) != list(range(len(shape))):
            raise ValueError("an array's shape or order")
        if not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError("an array's shape")
        needed = math.prod(shape) * dtype.itemsize
        # Shapes with a 0 among their numbers need nothing, but torch multiplies the others.
        if needed > num_bytes or math.prod(n for n in shape if n) >= 2**59:
            raise ValueError("an array larger than the file")
        places.append(start)
        start, num_bytes = start + needed, num_bytes - needed
    if num_bytes:
        raise ValueError(f"{num_bytes} bytes that belong to no array")
    return places


def _read_array(file: IO[bytes], place: int, entry: Any) -> Tensor:
    order = entry["order"]
    x = torch.empty([entry["shape"][d] for d in order], dtype=_DTYPES[entry["dtype"]])
    if x.numel():
        file.seek(place)
        file.readinto(_memory(x))  # pyright: ignore[reportAttributeAccessIssue]
    return x.permute([order.index(d) for d in range(len(order))])


def _decode(x: Any, arrays: Callable[[int], Tensor], without: Collection[str]) -> Any:
    if isinstance(x, list):
        raise ValueError("a list without a kind")
    if not isinstance(x, dict):
        return x
    ((kind, value),) = x.items()
    if kind == "dict" and isinstance(value, dict):
        wanted = ((k, v) for k, v in value.items() if k not in without)
        return {k: _decode(v, arrays, without) for k, v in wanted}
    if kind in ("list", "tuple") and isinstance(value, list):
        items = [_decode(v, arrays, without) for v in value]
        return items if kind == "list" else tuple(items)
    if kind in _LEAVES and type(value) is int and value >= 0:
        return _LEAVES[kind](arrays(value))
    raise ValueError(f"{kind!r:.20} of {value!r:.20}")


_LEAVES: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda x: x,
    "array": lambda x: x.numpy(),
    "scalar": lambda x: x.numpy()[()],
}
