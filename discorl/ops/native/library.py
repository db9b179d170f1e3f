"""How the kernels become a library that this process has loaded.

They are compiled once for each source, compiler, torch and kind of processor, in ten to
twenty seconds, and kept in the user's private cache.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import torch

from discorl.atomic import write_atomically
from discorl.cache import is_trusted, private_cache
from discorl.errors import DiscorlError

SOURCE = Path(__file__).with_name("rows.cpp")
HEADERS = (
    "agent_axis.h",
    "agents.h",
    "products.h",
    "vectors.h",
    "pooling.h",
    "winograd.h",
    "shallow.h",
    "images.h",
)
SOURCES = (SOURCE, *(SOURCE.with_name(name) for name in HEADERS))
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
COMPILERS = ("g++", "c++", "clang++")
MAX_SECONDS = 600.0
"""A compiler that takes longer hangs."""
TOLD = "compiling the CPU kernels, once on this machine: ten to twenty seconds"


class NoCompiler(DiscorlError):  # noqa: N818 - reads as a sentence where it is caught
    """This machine has no C++ compiler, and nobody said that it had."""


@functools.cache
def load() -> Path:
    """Load the kernels, compiled on first use and then kept in the user's cache.

    Returns where they are. Raises if they can be neither found nor made.
    """
    flags = [*compiler(), *FLAGS, *instructions()]
    command = [*flags, str(SOURCE), *LINK]
    told = (flags, LINK, _version(tuple(compiler())), torch.__version__, platform.machine())
    try:
        text = b"".join(path.read_bytes() for path in SOURCES)
        key = hashlib.sha256(text + repr(told).encode()).hexdigest()
        return _load(private_cache("kernels"), f"rows-{key[:16]}", command)
    except OSError as e:
        raise DiscorlError(f"cannot save or load the kernels: {e.__cause__ or e}") from e


def instructions() -> tuple[str, ...]:
    """Compiler flags for this processor, or for as much of it as torch may use."""
    kind = torch.backends.cpu.get_cpu_capability()
    bf16 = ("-mavx512bf16",) if kind == "AVX512" and torch.cpu._is_avx512_bf16_supported() else ()
    return INSTRUCTIONS.get(kind, ()) + bf16


def _load(folder: Path, name: str, command: list[str]) -> Path:
    """Load the library that an earlier process left whole, or one that ``command`` makes.

    A library's name ends in its digest, so that file and digest are written in one step, and
    processes that build at once cannot mix theirs up. What was checked is what is loaded, as only
    this user can write to the folder.
    """
    for library in sorted(folder.glob(f"{name}-*.so")):
        if _is_whole(library):
            with suppress(OSError):  # this system cannot load it
                torch.ops.load_library(library)
                return library
    print(TOLD, file=sys.stderr, flush=True)
    made = _compiled(command)
    library = folder / f"{name}-{hashlib.sha256(made).hexdigest()}.so"
    write_atomically(library, made)
    torch.ops.load_library(library)
    return library


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
    found = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if found is None:
        raise NoCompiler("no C++ compiler was found: install g++ or clang++, or set CXX")
    return [found]


@functools.cache
def _version(command: tuple[str, ...]) -> str:
    """What a compiler says about itself. Another one may have taken its name in the meantime."""
    return _run([*command, "--version"], 60.0).stdout


def _compiled(command: list[str]) -> bytes:
    """The library that the command makes."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "rows.so"
        made = _run([*command, "-o", str(library)], MAX_SECONDS)
        if made.returncode:
            said = made.stderr.strip().splitlines()
            why = next((line for line in said if "error" in line), "it did not say why")
            raise DiscorlError(f"{command[0]} could not compile the kernels: {why}")
        return library.read_bytes()


def _run(command: list[str], max_seconds: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env=os.environ | {"LC_ALL": "C"},  # so that an error is called one
            timeout=max_seconds,
        )
    except subprocess.TimeoutExpired:
        raise DiscorlError(f"{command[0]} did not end within {max_seconds:.0f} s") from None
    except OSError as e:  # such as a script without an interpreter
        raise DiscorlError(f"{command[0]} cannot be run: {e.strerror}") from None
