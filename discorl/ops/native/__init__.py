"""A few functions in C++ (``rows.cpp``), for learning on the CPU.

``build`` compiles and loads them. They stand in for their torch counterparts inside of ``with
kernels(True)``, wherever ``in_use`` says so: single precision, on the CPU. They have no gradients;
``apply_to`` asks besides that none is wanted. Results differ from torch's by rounding only.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

import torch
from torch import Tensor

from discorl.atomic import write_atomically
from discorl.cache import is_trusted, private_cache
from discorl.errors import DiscorlError

SOURCE = Path(__file__).with_name("rows.cpp")
TORCH = Path(torch.__file__).parent
FLAGS = (
    *("-std=c++20", "-O3", "-fPIC", "-shared", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"),
    f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
    *(f"-I{TORCH / folder}" for folder in ("include", "include/torch/csrc/api/include")),
)
LINK = (f"-L{TORCH / 'lib'}", "-ltorch_cpu", "-lc10")
INSTRUCTIONS = {
    "AVX512": (
        *("-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx512bw", "-mfma"),
        "-mprefer-vector-width=512",
    ),
    "AVX2": ("-mavx2", "-mfma"),
}
"""Compiler flags for what torch finds in the processor; elsewhere the compiler's defaults do."""

is_built = False
"""Whether the kernels are loaded."""
_in_use: ContextVar[bool] = ContextVar("native kernels in use", default=False)


@contextmanager
def kernels(use: bool) -> Iterator[None]:
    """Whether the kernels, once built, stand in for torch's operations."""
    token = _in_use.set(use)
    try:
        yield
    finally:
        _in_use.reset(token)


def in_use(*tensors: Tensor) -> bool:
    """Whether to use a kernel here, if its gradient is written out.

    Not inside of torch.compile, torch.func or autocast, none of which knows the kernels.
    """
    if torch.compiler.is_compiling() or not _in_use.get():
        return False
    if torch._C._are_functorch_transforms_active() or torch.is_autocast_enabled("cpu"):
        return False
    return _fit(tensors)


def apply_to(*tensors: Tensor) -> bool:
    """Whether to use a kernel here that has no gradient."""
    return not torch.is_grad_enabled() and in_use(*tensors)


def apply_even_compiled(*tensors: Tensor) -> bool:
    """The same for a kernel that torch.compile knows; it is for agents with kernels only."""
    if torch.compiler.is_compiling():
        return is_built and not torch.is_grad_enabled() and _fit(tensors)
    return apply_to(*tensors)


def _fit(tensors: tuple[Tensor, ...]) -> bool:
    return all(x.dtype == torch.float32 and x.device.type == "cpu" for x in tensors)


@functools.cache
def build() -> None:
    """Load the kernels, compiled on first use and then kept in the user's cache."""
    global is_built
    instructions = INSTRUCTIONS.get(torch.backends.cpu.get_cpu_capability(), ())
    command = [*compiler(), *FLAGS, *instructions, str(SOURCE), *LINK]
    told = (command, torch.__version__, platform.machine())
    try:
        key = hashlib.sha256(SOURCE.read_bytes() + repr(told).encode()).hexdigest()
        _load(private_cache("kernels"), f"rows-{key[:16]}", command)
    except OSError as e:
        raise DiscorlError(f"cannot save or load the kernels: {e.__cause__ or e}") from e
    torch.library.register_fake(  # its shape, for torch.compile
        "discorl::lstm_unroll_backward",
        lambda gates, weight, reset: gates.new_empty(*gates.shape[:2], len(weight)),
    )
    is_built = True


def _load(folder: Path, name: str, command: list[str]) -> None:
    """Load the library that an earlier process left whole, or one that ``command`` makes.

    A library's name ends in its digest, so that file and digest are written in one step, and
    processes that build at once cannot mix theirs up. What was checked is what is loaded, as only
    this user can write to the folder.
    """
    for library in sorted(folder.glob(f"{name}-*.so")):
        if _is_whole(library):
            with suppress(OSError):  # this system cannot load it
                torch.ops.load_library(library)
                return
    made = _compiled(command)
    library = folder / f"{name}-{hashlib.sha256(made).hexdigest()}.so"
    write_atomically(library, made)
    torch.ops.load_library(library)


def _is_whole(library: Path) -> bool:
    """Whether a library has the digest in its name. The loader would crash on a damaged one."""
    with library.open("rb") as file:
        if not is_trusted(os.fstat(file.fileno()).st_uid):
            return False
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return library.stem.endswith(f"-{digest}")


def compiler() -> list[str]:
    """The command of a C++ compiler: ``CXX``, or the first of the usual names that is there."""
    if given := os.environ.get("CXX", "").strip():
        try:
            command = shlex.split(given)
        except ValueError as e:
            raise DiscorlError(f"CXX is {given}, which is not a command ({e}): unset it") from e
        if shutil.which(command[0]):
            return command
        raise DiscorlError(f"CXX names {given}, which was not found: install it, or unset CXX")
    found = next((path for name in ("g++", "c++", "clang++") if (path := shutil.which(name))), None)
    if found is None:
        raise DiscorlError("no C++ compiler was found: install g++ or clang++, or set CXX")
    return [found]


def _compiled(command: list[str]) -> bytes:
    """The library that the command makes."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "rows.so"
        made = subprocess.run(
            [*command, "-o", str(library)],
            capture_output=True,
            text=True,
            errors="replace",
            env=os.environ | {"LC_ALL": "C"},  # so that an error is called one
        )
        if made.returncode:
            said = made.stderr.strip().splitlines()
            why = next((line for line in said if "error" in line), "it did not say why")
            raise DiscorlError(f"{command[0]} could not compile the kernels: {why}")
        return library.read_bytes()
