"""What can be done to checkpoints, sealed again afterwards so that the checksum is right."""

from __future__ import annotations

import hashlib
import json
import math
import random
import struct
from typing import Any

from tests.attacks.mutations import any_value, json_text, mutate_bytes, mutate_json
from tests.attacks.whole import PREFIX, SEAL_BYTES

DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "complex64", "bool", "uint8", "uint64", "int8"),
    *("int32", "int64", "qint8", "object", "", "float32\x1b[31m"),
)


def sealed(header: bytes, data: bytes, magic: bytes = b"discorl\x00", version: int = 1) -> bytes:
    """A checkpoint with a checksum that is right, whatever is in it."""
    body = PREFIX.pack(magic, version, len(header), len(data)) + header + data
    return body + hashlib.sha256(body).digest()


def mutate_tree(rng: random.Random, data: bytes) -> bytes:
    """Another tree, other arrays, or other bytes, under a valid seal."""
    magic, version, size, _ = PREFIX.unpack_from(data)
    header = data[PREFIX.size : PREFIX.size + size]
    rest = data[PREFIX.size + size : -SEAL_BYTES]
    what = rng.random()
    if what < 0.4:
        text = mutate_json(rng, json.loads(header))  # kinds and numbers of arrays are values, too
        return sealed(text.encode("utf-8", "surrogatepass"), rest, magic, version)
    if what < 0.65:
        return sealed(_mutated_arrays(rng, json.loads(header)), rest, magic, version)
    if what < 0.85:
        return sealed(header, _mutated_numbers(rng, rest), magic, version)
    if what < 0.92:
        return sealed(mutate_bytes(rng, header), rest, magic, version)
    body = mutate_bytes(rng, data[:-SEAL_BYTES])
    return body + hashlib.sha256(body).digest()


def _is_shaped(one: dict[str, Any]) -> bool:
    shape, order = one["shape"], one["order"]
    return all(isinstance(x, list) and all(type(n) is int for n in x) for x in (shape, order))


def _mutated_arrays(rng: random.Random, header: dict[str, Any]) -> bytes:
    """Kinds, shapes and orders of arrays, some of them in agreement with the data's size."""
    arrays = header["arrays"]
    for _ in range(rng.choice((1, 1, 2, 5))):
        one = rng.choice(arrays)
        what = rng.randrange(6)
        if not _is_shaped(one):  # an earlier round has seen to that
            continue
        if what == 0:
            one["dtype"] = rng.choice(DTYPES)
        elif what == 1:
            one["shape"], one["order"] = one["shape"][::-1], one["order"][::-1]
        elif what == 2:  # as many numbers, in another shape
            total = math.prod(one["shape"])
            one["shape"], one["order"] = rng.choice(
                (([total], [0]), ([1, total], [0, 1]), ([total, 1, 1], [2, 0, 1]))
            )
        elif what == 3:
            one["shape"] = rng.choice(([0], [2**62], [2**31, 2**31], [-1], [1] * 40, [0, 2**63]))
            one["order"] = list(range(len(one["shape"])))
        elif what == 4:
            other = rng.choice(arrays)
            one |= {"shape": other["shape"], "order": other["order"], "dtype": other["dtype"]}
        else:
            one[rng.choice(("dtype", "shape", "order"))] = any_value(rng)
    return json_text(header).encode("utf-8", "surrogatepass")


def _mutated_numbers(rng: random.Random, data: bytes) -> bytes:
    """Other numbers in the arrays, among them some that are none."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 10, 1000))):
        at = rng.randrange(max(len(out) // 4, 1)) * 4
        number = rng.choice((float("nan"), float("inf"), 1e38, -1.0, 0.0, 1e-44))
        new = rng.choice((struct.pack("<f", number), rng.randbytes(4), b"\xff" * 4, bytes(4)))
        out[at : at + 4] = new[: max(len(out) - at, 0)]
    return bytes(out)
