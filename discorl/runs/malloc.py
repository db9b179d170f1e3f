"""How the process gets its memory."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from malloc.h
LARGE = 1 << 30


def keep_freed_memory() -> bool:
    """Ask glibc to keep freed memory for the next tensors instead of returning it to the system.

    A training step frees and asks for the same hundreds of megabytes each time; handing them back
    means that the kernel clears every page again. Does nothing, and returns False, elsewhere.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        libc = ctypes.CDLL("libc.so.6")
        return bool(libc.mallopt(M_MMAP_THRESHOLD, LARGE) and libc.mallopt(M_TRIM_THRESHOLD, LARGE))
    except (OSError, AttributeError):
        return False
