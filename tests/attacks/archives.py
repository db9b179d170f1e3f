"""What can be done to .npz files, with pickles that tell on whoever loads them."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import struct
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.attacks.mutations import INTERESTING, mutate_bytes, mutate_json

DESCRIPTIONS = (
    *("'|O'", "'<f8'", "'<f2'", "'>f4'", "'<i4'", "'|b1'", "'|u1'", "'<c8'", "'<U10'", "'|S4'"),
    *("'<M8[s]'", "'|V100000000'", "'<f4,<f4'", "[('a', '<f4'), ('b', '|O')]", "'f'", "''", "7"),
    *("None", "('<f4', (1000, 1000))", "'<f4' * 99", "'\\x1b[31m'", "{'a': 1}"),
)
SHAPES = (
    *("()", "(0,)", "(1,)", "(-1,)", "(-2, -3)", "(2**40,)", "(1000000000000,)", "(1.5,)", "7"),
    *("(True,)", "None", "(3, 0, 99999999999)", f"({'1, ' * 40})", f"({'1, ' * 500})", "('a',)"),
    *("[3, 4]", "(9999999999999999999999,)", "(" * 90 + ")" * 90),
)
NAMES = (
    *(b"", b"a", b"../../x.npy", b"/etc/x.npy", b"a\nb.npy", b"\x1b[31mred.npy", b"\xff\xfe.npy"),
    *(b"x" * 5000 + b".npy", b"a/", b"\x00.npy", b"con.npy", b"a.npy.npy", b".npy"),
)


@dataclass
class Entry:
    """One file in an archive, of which every field may lie."""

    name: bytes
    data: bytes
    """As it is in the archive."""
    method: int = 0
    size: int = 0
    crc: int = 0
    flags: int = 0
    claims: dict[str, int] = field(default_factory=dict)
    """What only the directory at the end says."""


class Telltale:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


def stored(name: bytes, data: bytes, compress: bool = False) -> Entry:
    """An honest entry."""
    packed = data
    if compress:
        deflate = zlib.compressobj(wbits=-15)
        packed = deflate.compress(data) + deflate.flush()
    return Entry(name, packed, 8 if compress else 0, len(data), zlib.crc32(data))


def pack(entries: list[Entry], comment: bytes = b"", before: bytes = b"") -> bytes:
    """An archive, whatever the entries say."""
    out, directory = io.BytesIO(), io.BytesIO()
    out.write(before)
    for e in entries:
        at = out.tell()
        local = (20, e.flags, e.method, 0, 33, e.crc, len(e.data), e.size, len(e.name), 0)
        out.write(struct.pack("<4s5H3L2H", b"PK\x03\x04", *_fitting(local, "5H3L2H")) + e.name)
        out.write(e.data)
        said = {"flags": e.flags, "method": e.method, "crc": e.crc, "packed": len(e.data)}
        said |= {"size": e.size, "at": at} | e.claims
        central = (20, 20, said["flags"], said["method"], 0, 33, said["crc"], said["packed"])
        central += (said["size"], len(e.name), 0, 0, 0, 0, 0, said["at"])
        layout = "6H3L5H2L"
        directory.write(struct.pack(f"<4s{layout}", b"PK\x01\x02", *_fitting(central, layout)))
        directory.write(e.name)
    start, data = out.tell(), directory.getvalue()
    end = (0, 0, len(entries), len(entries), len(data), start, len(comment))
    out.write(data + struct.pack("<4s4H2LH", b"PK\x05\x06", *_fitting(end, "4H2LH")) + comment)
    return out.getvalue()


def npy(description: str, shape: str, payload: bytes, version: int = 1) -> bytes:
    """An array file with any header."""
    text = f"{{'descr': {description}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    length = struct.pack("<H" if version == 1 else "<I", len(text) % 2**16)
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + payload


def unpack(data: bytes) -> tuple[list[Entry], bytes]:
    """The entries of an honest archive, not compressed, and its comment."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos = archive.infolist()
        return [stored(i.filename.encode(), archive.read(i)) for i in infos], archive.comment


def mutate_archive(rng: random.Random, data: bytes, canary: Path) -> bytes:
    """Change entries of an archive, or how they are packed; ``canary`` is what pickles make."""
    if rng.random() < 0.3:
        return mutate_bytes(rng, data)
    entries, comment = unpack(data)
    before = b""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        what = rng.random()
        at = rng.randrange(len(entries)) if entries else None
        if at is not None and what < 0.45:
            entries[at] = stored(entries[at].name, _other_array(rng, entries[at].data, canary))
        elif at is not None and what < 0.65:
            _lie(rng, entries[at])
        elif at is not None and what < 0.75:
            entries[at].name = rng.choice((*NAMES, mutate_bytes(rng, entries[at].name)))[:60_000]
        elif what < 0.85:
            entries = _other_list(rng, entries)
        elif what < 0.97:
            comment = _other_comment(rng, comment)
        else:
            before = rng.randbytes(rng.choice((1, 100, 5000)))
    return pack(entries, comment[:65_535], before)


def _fitting(values: tuple[int, ...], layout: str) -> list[int]:
    """Numbers cut to the size of their fields."""
    letters = [c for n, c in zip(layout[::2], layout[1::2], strict=False) for _ in range(int(n))]
    letters += [layout[-1]] * (len(values) - len(letters))
    return [v % (2**16 if c == "H" else 2**32) for v, c in zip(values, letters, strict=True)]


def _other_array(rng: random.Random, data: bytes, canary: Path) -> bytes:
    """Another array: its values, its header, or its kind."""
    start = data.index(b"\n") + 1 if b"\n" in data else 0
    payload = data[start:]
    what = rng.randrange(6)
    if what == 0:
        return mutate_bytes(rng, data)
    if what == 1:
        pickled = pickle.dumps(Telltale(canary), protocol=rng.choice((0, 2, 4)))
        return npy("'|O'", rng.choice(("()", "(1,)", "(2, 2)")), pickled, rng.choice((1, 2, 3)))
    if what == 2:
        return pickle.dumps(Telltale(canary))
    if what == 3:
        return npy(rng.choice(DESCRIPTIONS), rng.choice(SHAPES), payload, rng.choice((1, 2, 3, 9)))
    if what == 4:  # right but for values that are not numbers, or far too large
        odd = struct.pack("<f", rng.choice((float("nan"), float("inf"), 1e38, -1e38, 1e-44)))
        count = len(payload) // 4
        at = rng.randrange(count or 1) * 4
        spoilt = payload[:at] + odd + payload[at + 4 :]
        return data[:start] + (odd * count if rng.random() < 0.3 else spoilt)
    return data[:start] + payload[: rng.randint(0, len(payload))] + rng.randbytes(rng.randrange(9))


def _lie(rng: random.Random, entry: Entry) -> None:
    numbers = (0, 1, 2**16 - 1, 2**31, 2**32 - 1, entry.size + 1, max(entry.size - 1, 0))
    what = rng.randrange(5)
    if what == 0:
        name = rng.choice(("size", "packed", "crc", "at", "flags", "method"))
        entry.claims[name] = rng.choice(numbers)
    elif what == 1:
        entry.size = rng.choice(numbers)
    elif what == 2:
        entry.flags = 1 << rng.randrange(16)
    elif what == 3:
        entry.method = rng.choice((1, 8, 9, 12, 14, 93, 99))
    else:
        entry.crc ^= 1 << rng.randrange(32)


def _other_list(rng: random.Random, entries: list[Entry]) -> list[Entry]:
    if not entries or rng.random() < 0.3:
        odd = stored(rng.choice(NAMES), rng.choice(INTERESTING))
        return [*entries, odd]
    one = rng.choice(entries)
    if rng.random() < 0.5:
        return [e for e in entries if e is not one]
    return [*entries, *[one] * rng.choice((1, 1, 2000))]


def _other_comment(rng: random.Random, comment: bytes) -> bytes:
    """The settings of a rule are in its archive's comment."""
    try:
        content = json.loads(comment)
    except (ValueError, RecursionError):  # it was mutated before
        content = {}
    if rng.random() < 0.8:
        return mutate_json(rng, content).encode("utf-8", "surrogatepass")
    return mutate_bytes(rng, comment)
