"""Named arrays through a pipe, between processes that share no more than NumPy."""

from __future__ import annotations

import io
import struct
from typing import IO

import numpy as np

Arrays = dict[str, np.ndarray]


def send(stream: IO[bytes], arrays: Arrays) -> None:
    """Write the arrays, with their length before them."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)  # pyright: ignore[reportArgumentType]
    stream.write(struct.pack("<Q", buffer.tell()))
    stream.write(buffer.getbuffer())
    stream.flush()


def receive(stream: IO[bytes]) -> Arrays | None:
    """Read what ``send`` wrote; None where the other side has closed the pipe."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    data = stream.read(struct.unpack("<Q", head)[0])
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return dict(archive)
