"""Files that are small and grow, and things that are no files at all."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path

from tests.attacks.archives import Entry, npy, pack, stored
from tests.attacks.trees import sealed

BOMB_BYTES = 1_536 * 2**20
SPARSE_BYTES = 8 * 2**30
MANY = 300_000


def special(kind: str) -> Callable[[Path], None]:
    """Puts something at a path that is no ordinary file."""

    def plant(path: Path) -> None:
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "loop":
            path.symlink_to(path.name)
        elif kind == "dangling":
            path.symlink_to("nowhere")
        elif kind == "sparse":
            with path.open("wb") as file:
                file.truncate(SPARSE_BYTES)
        else:
            path.symlink_to(f"/dev/{kind}")

    return plant


SPECIALS = ("fifo", "folder", "loop", "dangling", "sparse", "zero", "null", "full")


def zip_bomb() -> bytes:
    """An array of zeros that takes a thousand times its size."""
    head = npy("'<f4'", f"({BOMB_BYTES // 4},)", b"")
    deflate = zlib.compressobj(9, wbits=-15)
    first = deflate.compress(head) + deflate.flush(zlib.Z_FULL_FLUSH)
    chunk = deflate.compress(bytes(2**24)) + deflate.flush(zlib.Z_FULL_FLUSH)
    data = first + chunk * (BOMB_BYTES // 2**24) + deflate.flush()
    return pack([Entry(b"bomb.npy", data, 8, BOMB_BYTES + len(head))])


def lying_bomb() -> bytes:
    """The same, but it claims to be small."""
    data = zip_bomb()
    at = data.rindex(b"PK\x01\x02")
    return data[: at + 24] + (128).to_bytes(4, "little") + data[at + 28 :]


def many_entries() -> bytes:
    """More entries than a reader should list."""
    name = b"PK\x01\x02" + bytes(24) + (1).to_bytes(2, "little") + bytes(16) + b"a"
    directory = name * MANY
    end = b"PK\x05\x06" + bytes(4) + b"\xff\xff" * 2 + len(directory).to_bytes(4, "little")
    return directory + end + bytes(4) + bytes(2)


def many_arrays() -> bytes:
    """As many arrays as a small file can hold."""
    one = npy("'<f4'", "(1,)", bytes(4))
    return pack([stored(f"{i}.npy".encode(), one) for i in range(20_000)])


def deep_json() -> bytes:
    """Nesting that no recursion survives."""
    return b'{"step": 1, "a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}\n"


def wide_json() -> bytes:
    """A list that takes thirty times the file's size in memory."""
    return ('{"step": 1, "a": [' + "{}," * 8_000_000 + "0]}\n").encode()


def huge_integer() -> bytes:
    """A number whose conversion takes the square of its length."""
    return ('{"step": 1' + "0" * 1_000_000 + "}\n").encode()


def wide_header() -> bytes:
    """A checkpoint with a valid seal that is all header."""
    return sealed(b'{"tree":{"list":[' + b'{"dict":{}},' * 4_000_000 + b'0]},"arrays":[]}', b"")


def deep_header() -> bytes:
    """A checkpoint with a valid seal and a deep tree."""
    return sealed(b'{"tree":' + b'{"list":[' * 50_000 + b"0" + b"]}" * 50_000 + b"}", b"")


def many_empty_arrays() -> bytes:
    """Arrays without numbers cost nothing in a file, and something in memory."""
    one = json.dumps({"dtype": "float32", "shape": [0], "order": [0]}).encode()
    arrays = b",".join([one] * 400_000)
    return sealed(b'{"tree":{"tensor":0},"arrays":[' + arrays + b"]}", b"")


ARCHIVES = (zip_bomb, lying_bomb, many_entries, many_arrays)
TEXTS = (deep_json, wide_json, huge_integer)
HEADERS = (wide_header, deep_header, many_empty_arrays)
