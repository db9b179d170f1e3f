"""What can be done to bytes and to JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

INTERESTING = (
    *(b"\x00", b"\xff", b"\x7f", b"\x80", b"\n", b'"', b"{", b"[", b"}", b"\x00\x00\x00\x00"),
    *(b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\xff" * 8, b"\x00" * 8, b"PK\x05\x06", b"1e999"),
)
NUMBERS = (
    *(0, 1, -1, 2, 7, 255, -(2**31), 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, 10**400),
    *(0.0, -0.0, 0.5, 1.5, -3.0, 1e-300, 1e30, 1e38, 1e300, 1.7e308, -1e308),
    *(float("nan"), float("inf"), float("-inf")),
)
TEXTS = (
    *("", " ", "x", "auto", "None", "nan", "-1", "..", "/", "/dev/zero", "../../etc/passwd", "~"),
    *("\x00", "\n", "\r\n", "a\nb: c", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x9b31m", "\x08"),
    *("\ud800", "\u202egpj.exe", "\U0001f600", "[bold]x[/nope]", "{0}", "%s", "<script>", "é" * 50),
    *("x" * 10_000, "9" * 5_000, "os:system", "gym:os:X-v0", "catch:-1x5", "catch:99999x99999"),
)
DEEP = "\x00deep {} {}\x00"
"""Stands for nesting that json itself would refuse to write."""


def mutate_bytes(rng: random.Random, data: bytes, others: tuple[bytes, ...] = ()) -> bytes:
    """A few changes somewhere, that know nothing of what they change."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        data = rng.choice(_BYTES)(rng, data, others)
    return data


def _place(rng: random.Random, data: bytes) -> int:
    """Anywhere, but more often at the ends, where formats keep their sizes."""
    near = rng.randint(0, min(64, len(data)))
    return rng.choice((near, len(data) - near, rng.randint(0, len(data))))


def _flip(rng: random.Random, data: bytes, others: tuple[bytes, ...]) -> bytes:
    if not data:
        return data
    at = min(_place(rng, data), len(data) - 1)
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _overwrite(rng: random.Random, data: bytes, others: tuple[bytes, ...]) -> bytes:
    at, new = _place(rng, data), rng.choice((*INTERESTING, rng.randbytes(rng.randint(1, 16))))
    return data[:at] + new + data[at + len(new) :]


def _insert(rng: random.Random, data: bytes, others: tuple[bytes, ...]) -> bytes:
    at, new = _place(rng, data), rng.choice((*INTERESTING, rng.randbytes(rng.randint(1, 300))))
    return data[:at] + new + data[at:]


def _truncate(rng: random.Random, data: bytes, others: tuple[bytes, ...]) -> bytes:
    return data[: _place(rng, data)]


def _cut_out(rng: random.Random, data: bytes, others: tuple[bytes, ...]) -> bytes:
    at = _place(rng, data)
    return data[:at] + data[at + rng.choice((1, 4, 32, 1000)) :]


def _repeat(rng: random.Random, data: bytes, others: tuple[bytes, ...]) -> bytes:
    at = _place(rng, data)
    part = data[at : at + rng.choice((1, 4, 32, 1000))]
    return data[:at] + part * rng.choice((1, 1, 3, 50)) + data[at:]


def _zero(rng: random.Random, data: bytes, others: tuple[bytes, ...]) -> bytes:
    at = _place(rng, data)
    count = min(rng.choice((1, 4, 64, 4096)), len(data) - at)
    return data[:at] + bytes(count) + data[at + count :]


def _splice(rng: random.Random, data: bytes, others: tuple[bytes, ...]) -> bytes:
    other = rng.choice(others) if others else data
    return data[: _place(rng, data)] + other[_place(rng, other) :]


_BYTES: tuple[Callable[[random.Random, bytes, tuple[bytes, ...]], bytes], ...] = (
    *(_flip, _overwrite, _insert, _truncate, _cut_out, _repeat, _zero, _splice),
)


# --- JSON ----------------------------------------------------------------------------------------


def mutate_json(rng: random.Random, content: Any) -> str:
    """A JSON text in which one or a few values are not what they were."""
    content = json.loads(json.dumps(content))
    for _ in range(rng.choice((1, 1, 1, 1, 2, 5))):
        content = _change(rng, content)
    return json_text(content)


def json_text(content: Any) -> str:
    """JSON with marks for deep nesting filled in; NaN, infinities and huge integers are written."""
    text = json.dumps(content, indent=2)
    while (start := text.find('"\\u0000deep')) >= 0:
        end = text.find('\\u0000"', start) + 7
        if end == 6:  # the mark itself was cut
            return text
        opening, depth = text[start + 12 : end - 7].split()
        closing = {"[": "]", '{\\"a\\":': "}"}[opening]
        value = opening.replace('\\"', '"') * int(depth) + "0" + closing * int(depth)
        text = text[:start] + value + text[end:]
    return text


def any_value(rng: random.Random) -> Any:
    """A value that nobody expects."""
    kind = rng.randrange(8)
    if kind <= 1:
        return rng.choice(NUMBERS)
    if kind <= 3:
        return rng.choice(TEXTS)
    if kind == 4:
        return rng.choice((None, True, False, [], {}, [[]], {"": None}, [None] * 40))
    if kind == 5:
        return [rng.choice(NUMBERS) for _ in range(rng.choice((1, 2, 5, 1000)))]
    if kind == 6:
        return DEEP.format(rng.choice(("[", '{"a":')), rng.choice((50, 500, 5_000, 100_000)))
    return {rng.choice(TEXTS): rng.choice((*NUMBERS, *TEXTS)) for _ in range(3)}


def _change(rng: random.Random, content: Any) -> Any:
    """Walk down to some value, and replace, remove, double or move it."""
    if not isinstance(content, dict | list) or not content or rng.random() < 0.03:
        return _nudged(rng, content)
    keys = list(content) if isinstance(content, dict) else list(range(len(content)))
    key = rng.choice(keys)
    what = rng.random()
    if isinstance(content[key], dict | list) and content[key] and what < 0.85:
        content[key] = _change(rng, content[key])
    elif what < 0.90:
        content[key] = _nudged(rng, content[key])
    elif what < 0.94:
        del content[key]
    elif what < 0.97:
        content[key] = content[rng.choice(keys)]
    elif isinstance(content, dict):
        content[rng.choice(TEXTS)] = any_value(rng)
    else:
        content.append(any_value(rng))
    return content


def _nudged(rng: random.Random, value: Any) -> Any:
    """Another value, of the same kind or of any."""
    if type(value) in (int, float) and rng.random() < 0.5:
        return rng.choice((*NUMBERS, value + 1, value - 1, -value, value * 10, str(value)))
    if isinstance(value, str) and rng.random() < 0.5:
        return rng.choice((*TEXTS, value.upper(), value[:-1], f"{value}{rng.choice(TEXTS)}"))
    if isinstance(value, list | dict) and rng.random() < 0.3:
        return list(value) * 2 if isinstance(value, list) else {"a": value}
    return any_value(rng)
