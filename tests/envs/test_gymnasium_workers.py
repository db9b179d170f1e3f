"""Environments that end processes, and processes that end, hang or get signals."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

from discorl.envs.gymnasium import GymnasiumEnv, make_vector
from discorl.envs.gymnasium.exits import call_without_exit
from discorl.envs.gymnasium.vector import Factory
from discorl.errors import DiscorlError, EnvFailure
from tests.builders import rng
from tests.envs.gym_examples import Corridor, Faulty

Faults = list[str | None]


def wrapped(faults: Faults, workers: Any) -> GymnasiumEnv:
    factories = [lambda f=f: Faulty(f) for f in faults]
    return GymnasiumEnv(make_vector(factories, workers), owned=True, name="it")


def go(env: GymnasiumEnv, num_steps: int) -> None:
    state, _ = env.reset(rng())
    for _ in range(num_steps):
        state, _ = env.step(state, torch.ones(env.num_envs, dtype=torch.long), rng())


def pids(env: GymnasiumEnv) -> list[int]:
    processes: Any = env._envs.unwrapped.processes  # pyright: ignore[reportAttributeAccessIssue]
    return [process.pid for process in processes]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# --- ends ----------------------------------------------------------------------------------------


def test_os_exit_is_a_failure_that_is_named() -> None:
    honest = os._exit
    with pytest.raises(EnvFailure, match="environment 1 failed to step: SystemExit: 3"):
        go(wrapped([None, "os._exit"], "sync"), 5)
    assert os._exit is honest
    with pytest.raises(EnvFailure, match=r"environment 1 died .*code 3.* while it was in step"):
        go(wrapped([None, "os._exit"], "async"), 5)


class BadStart(Corridor):
    """Ends the process in its constructor or its first reset; in the constructor not at first."""

    def __init__(self, how: Any, where: str, first: int) -> None:
        super().__init__()
        self._how = how if where == "reset" else None
        if where == "constructor" and os.getpid() != first:
            how()

    def reset(self, **kwargs: Any) -> Any:
        if self._how:
            self._how()
        return super().reset(**kwargs)


def leave() -> None:
    os._exit(4)


@pytest.mark.parametrize("how", [sys.exit, leave])
@pytest.mark.parametrize("where", ["constructor", "reset"])
@pytest.mark.parametrize("workers", ["sync", "async"])
def test_ends_in_constructor_and_reset(how: Any, where: str, workers: Any, capfd: Any) -> None:
    first = 0 if workers == "sync" else os.getpid()  # of async ones, only workers fail
    with pytest.raises(
        DiscorlError, match=r"environment 0 (failed to|could not be|died)"
    ) as caught:
        go(GymnasiumEnv(make_vector([lambda: BadStart(how, where, first)] * 2, workers)), 1)
    assert isinstance(caught.value, EnvFailure) == (where == "reset")
    assert capfd.readouterr().err == ""


class Forking(Corridor):
    """Has a process of its own for a moment, as some environments do."""

    def step(self, action: Any) -> Any:
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(0,))
        process.start()
        process.join()
        assert process.exitcode == 0, "it ended as processes do, in os._exit"
        return super().step(action)


def test_processes_of_an_environment_may_end() -> None:
    go(GymnasiumEnv(make_vector([Forking])), 2)


def test_other_threads_may_end_the_process() -> None:
    """A watchdog of the user's, while an environment hangs."""
    script = """
import os, threading, time
from discorl.envs.gymnasium.exits import call_without_exit
threading.Timer(0.1, os.abort if os._exit is None else (lambda: os._exit(7))).start()
call_without_exit(time.sleep, 60)
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 7


def test_calls_may_be_nested_and_in_several_threads() -> None:
    honest, inside, done = os._exit, threading.Event(), threading.Event()

    def stay() -> None:
        inside.set()
        done.wait()

    other = threading.Thread(target=call_without_exit, args=(stay,))
    other.start()
    inside.wait()
    for function in (os._exit, lambda status: call_without_exit(os._exit, status)):
        with pytest.raises(SystemExit):
            call_without_exit(lambda function=function: function(1))
    done.set()
    other.join()
    assert os._exit is honest


class BadEnd(Corridor):
    def close(self) -> None:
        sys.exit("late")


def test_a_failure_to_close_is_a_warning() -> None:
    env = GymnasiumEnv(make_vector([BadEnd]), owned=True, name="it")
    with pytest.warns(UserWarning, match="it: environment 0 failed to close: SystemExit: late"):
        env.close()


# --- silence -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "stopped from outside"])
def test_a_worker_that_is_silent_is_named(how: str) -> None:
    env = wrapped([None, "stop" if how == "stop" else None], "async")
    env.set_timeout(0.005)
    go(env, 2)
    if how != "stop":
        os.kill(pids(env)[1], signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(EnvFailure, match=r"environment 1 has not answered for 0\.005 minutes") as e:
        go(env, 5)
    assert "--timeout-minutes" in str(e.value)
    assert time.monotonic() - started > 0.29
    env.close()
    assert not any(map(is_alive, pids(env)))


def test_workers_that_continue_are_not_silent() -> None:
    """What one waits for while everything is suspended does not count."""
    script = """
import torch
from tests.envs.test_gymnasium_workers import wrapped, rng
env = wrapped([None, None], "async")
env.set_timeout(0.02)  # 1.2 s
state, _ = env.reset(rng())
print("ready", flush=True)
for _ in range(200000):
    state, _ = env.step(state, torch.ones(2, dtype=torch.long), rng())
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            for _ in range(3):
                os.killpg(process.pid, signal.SIGSTOP)
                time.sleep(1.5)
                os.killpg(process.pid, signal.SIGCONT)
                time.sleep(0.1)
                assert process.poll() is None
        finally:
            os.killpg(process.pid, signal.SIGKILL)


# --- signals -------------------------------------------------------------------------------------


@pytest.fixture
def workers() -> Iterator[GymnasiumEnv]:
    env = wrapped([None, None], "async")
    yield env
    env.close()


def test_workers_leave_signals_to_the_run(workers: GymnasiumEnv) -> None:
    go(workers, 1)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        for pid in pids(workers):
            os.kill(pid, number)
    go(workers, 2)
    assert all(map(is_alive, pids(workers)))
    workers.close()
    assert not any(map(is_alive, pids(workers)))


class Starting(gymnasium.Wrapper):
    """Starts a program, as simulators do, and ends it."""

    def step(self, action: Any) -> Any:
        with subprocess.Popen(["sleep", "60"]) as process:
            process.terminate()
        assert process.returncode == -signal.SIGTERM
        return super().step(action)


def test_programs_that_an_environment_starts_can_be_ended() -> None:
    env = GymnasiumEnv(make_vector([lambda: Starting(Corridor())], "async"), owned=True)
    go(env, 1)
    env.close()


def ends_within(seconds: float, found: list[int]) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(is_alive, found)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_alive, found))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("end", ["kill -9", "never closed", "raises"])
def test_no_worker_outlives_the_run(end: str) -> None:
    then = {"kill -9": "time.sleep(60)", "never closed": "", "raises": "env.step(0, 0, 0)"}[end]
    script = f"""
import time
from tests.envs.test_gymnasium_workers import go, pids, wrapped
env = wrapped([None] * 3, "async")
go(env, 2)
print(*pids(env), flush=True)
{then}
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        found = [int(pid) for pid in process.stdout.readline().split()]
        assert len(found) == 3
        if end == "kill -9":
            process.kill()
        assert end == "raises" or process.stderr.read() == ""
    assert ends_within(20, found)


def test_ctrl_c_while_workers_start_prints_no_traceback() -> None:
    """Each constructor, in whichever process, sends Ctrl-C to all of them."""
    script = """
import os, signal, sys
from tests.envs.gym_examples import Corridor
from discorl.envs.gymnasium import make_vector

signal.signal(signal.SIGINT, signal.default_int_handler)  # the suite may run in the background
first = os.getpid()
def make():
    if os.getpid() != first:
        os.killpg(0, signal.SIGINT)
    return Corridor()
try:
    make_vector([make] * 4, "async")
except KeyboardInterrupt:
    sys.exit(130)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        start_new_session=True,
    )
    assert (done.returncode, done.stderr) == (130, "")


def test_a_factory_is_asked_in_its_worker_and_its_failure_reported() -> None:
    first = os.getpid()

    def make() -> gymnasium.Env:
        if os.getpid() != first:
            raise ZeroDivisionError("not here")
        return Corridor()

    factories: list[Factory] = [Corridor, make]
    # The first one is made here, too, to ask for its spaces; the second only in its worker.
    with pytest.raises(
        DiscorlError, match="environment 1 could not be made: ZeroDivisionError: not here"
    ):
        make_vector(factories, "async")
