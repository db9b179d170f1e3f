"""``discorl kernels``."""

from __future__ import annotations

from discorl.cli.parse import call_one_of


def kernels_command(args: list[str]) -> int:
    """One of the commands for the kernels in C++; returns the exit code."""
    about = "Kernels in C++ that training and discovery use on the CPU: see --kernels of 'train'."
    return call_one_of({"build": _build}, "kernels", about, args)


def _build() -> None:
    """Compile the kernels for this machine, unless that has been done, and say where they are.

    Training does this by itself when it needs them; this is for images and installers.
    """
    from discorl.ops.native.library import load

    print(f"ready: {load()}")
