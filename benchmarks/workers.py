"""The implementations that are compared, and the processes that run them."""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.venvs import BENCH, ROOT, AbsentError, python_of

REPLY_TIMEOUT = 1200.0
"""Seconds; the slowest compilation takes a minute or two."""


@dataclass(frozen=True)
class Implementation:
    """One way of doing the work: a module of ``benchmarks.peers`` and an interpreter for it."""

    name: str
    module: str
    python: Path
    arguments: tuple[str, ...] = ()
    root: Path = ROOT
    """The source tree to run."""


OURS = Implementation("discorl", "ours", Path(sys.executable))
PLAIN = Implementation("plain", "ours", Path(sys.executable), ("--plain",))
BF16 = Implementation("bf16", "ours", Path(sys.executable), ("--bf16",))
COMPILED = Implementation("compiled", "ours", Path(sys.executable), ("--compile",))


class WorkerError(Exception):
    """A worker could not do what it was asked, and why."""


class Worker(AbstractContextManager):
    """A process that runs one implementation, and the conversation with it."""

    def __init__(self, implementation: Implementation, threads: int) -> None:
        self.implementation = implementation
        self._log = BENCH / "logs" / f"{implementation.name}.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        module = f"benchmarks.peers.{implementation.module}"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [str(implementation.python), "-m", module, *implementation.arguments],
                cwd=implementation.root,
                env=os.environ | _thread_settings(threads) | {"PYTHONPATH": ""},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        try:
            hello = self._receive()
        except WorkerError:
            self.__exit__()
            raise
        self.work: list[str] = hello["work"]
        self.facts: dict[str, Any] = hello["facts"]
        self.start_bytes: int = hello["start_bytes"]

    def ask(self, work: str, options: dict[str, int | str], repeats: int) -> dict[str, Any]:
        """Have ``work`` timed. It is made ready when first asked for, or with 0 repeats."""
        if work not in self.work:
            raise WorkerError("has nothing of the kind")
        assert self._process.stdin
        request = {"name": work, "options": options, "repeats": repeats}
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerError(self._last_words()) from None
        reply = self._receive()
        if "error" in reply:
            raise WorkerError(reply["error"])
        return reply

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        assert self._process.stdout
        try:
            self._process.stdin.close()  # which ends it
            self._process.wait(timeout=20)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout
        answered, _, _ = select.select([self._process.stdout], [], [], REPLY_TIMEOUT)
        if not answered:
            self._process.kill()
            raise WorkerError(f"no answer within {REPLY_TIMEOUT:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(self._last_words())
        return json.loads(line)

    def _last_words(self) -> str:
        lines = [line for line in self._log.read_text().splitlines() if line.strip()]
        return lines[-1] if lines else f"ended with code {self._process.wait()}"


def _thread_settings(threads: int) -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {name: str(threads) for name in names}


def pin_to_cores(threads: int) -> None:
    """Give this process, and the workers it starts, as many cores as threads.

    XLA has no setting for its number of threads; it counts the cores that it may use.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def use_rule() -> None:
    """Find Disco103, or fetch it, and tell the workers where it is."""
    from discorl.errors import DiscorlError
    from discorl.rules.store import DISCO103_ENV, fetch_disco103, find_disco103

    try:
        path = find_disco103() or fetch_disco103()
    except DiscorlError as e:
        raise SystemExit(f"error: {e}") from None
    os.environ[DISCO103_ENV] = str(path.resolve())


def jax_reference(given_python: Path | None, install: bool) -> Implementation:
    """The reference in the source tree that the user names."""
    path = os.environ.get("DISCO_RL_PATH")
    if not path:
        raise AbsentError(
            "DISCO_RL_PATH is not set; clone https://github.com/google-deepmind/disco_rl and set "
            "it to the path of the clone"
        )
    if not (Path(path) / "disco_rl").is_dir():
        raise AbsentError("DISCO_RL_PATH names a folder without disco_rl in it")
    os.environ["DISCO_RL_PATH"] = str(Path(path).resolve())
    python = python_of("jax", _requirements("jax_reference"), given_python, install)
    return Implementation("jax", "jax_reference", python)


def jax_in_turn(given_python: Path | None, install: bool) -> Implementation:
    """The same with the agents of a discovery one after the other, and not under ``vmap``."""
    reference = jax_reference(given_python, install)
    return replace(reference, name="jax-in-turn", arguments=("--agents-in-turn",))


def jax_python(parser: argparse.ArgumentParser, given: Path | None) -> Path:
    """The reference's interpreter; without one, the command ends and says what is missing."""
    try:
        return jax_reference(given, install=True).python
    except AbsentError as e:
        parser.error(f"the JAX reference is absent: {e}")


def disco_torch(given_python: Path | None, install: bool) -> Implementation:
    """The PyTorch port on the package index, with an agent like the one of its examples."""
    python = python_of("disco-torch", _requirements("disco_torch_peer"), given_python, install)
    return Implementation("disco-torch", "disco_torch_peer", python)


def disco_torch_fast(given_python: Path | None, install: bool) -> Implementation:
    """The same package with an agent that we wrote for it to be fast."""
    python = disco_torch(given_python, install).python
    return Implementation("disco-torch-fast", "disco_torch_peer", python, ("--fast-agent",))


def sb3(given_python: Path | None, install: bool) -> Implementation:
    """Stable-Baselines3's PPO: another algorithm, for the speed of whole runs."""
    python = python_of("sb3", _requirements("sb3_ppo"), given_python, install)
    return Implementation("sb3", "sb3_worker", python)


PEERS: dict[str, Callable[[Path | None, bool], Implementation]] = {
    "plain": lambda python, install: PLAIN,
    "bf16": lambda python, install: BF16,
    "compiled": lambda python, install: COMPILED,
    "jax": jax_reference,
    "jax-in-turn": jax_in_turn,
    "disco-torch": disco_torch,
    "disco-torch-fast": disco_torch_fast,
    "sb3": sb3,
}


def another_tree(root: Path, ours: Implementation) -> Implementation:
    """What ``ours`` does with the code of this tree, with that of another."""
    return replace(ours, name=f"other {ours.name}", root=root.resolve())


def _requirements(module: str) -> Path:
    return Path(__file__).parent / "peers" / f"{module}.txt"


def find_implementations(
    peers: Sequence[str], pythons: dict[str, Path | None], install: bool
) -> tuple[list[Implementation], dict[str, str]]:
    """Ourselves and the peers that can be had; and for the others, why not."""
    found, absent = [OURS], {}
    for name in peers:
        try:
            found.append(PEERS[name](pythons.get(name), install))
        except AbsentError as e:
            absent[name] = str(e)
    return found, absent
