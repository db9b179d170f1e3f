"""Whether kernels can be built here."""

from __future__ import annotations

import pytest

from discorl.errors import DiscorlError
from discorl.ops.native.library import compiler


def compiler_is_missing() -> bool:
    try:
        compiler()
    except DiscorlError:
        return True
    return False


needs_compiler = pytest.mark.skipif(
    compiler_is_missing(), reason="needs a C++ compiler: install g++ or clang++, or set CXX"
)
