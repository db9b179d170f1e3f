"""Tiny discoveries on every kind of task: ``python -m tests.discovery.every_kind FOLDER KIND ...``.

Each kind lives beside a tensor task, by turns in one process (``one``), in two as torchrun starts
them (``two``), and in two that ``kill -9`` ends in the third meta-step and that then go on
(``killed``). Processes are forked, without the seconds that it takes to import everything.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from discorl.discovery import discover as module
from discorl.discovery.config import DiscoverConfig
from discorl.envs.suites import SUITES
from discorl.nets.net_config import NetConfig
from tests.attacks import forked
from tests.meta.population import tiny_config

ONES = {
    "vectors": "gym:CartPole-v1*2",
    "MinAtar": "minatar:breakout*2/conv",
    "MiniGrid": "minigrid:Empty-5x5*1",
    "Atari": "ale:Pong*1/nature",
    "ProcGen": "procgen:coinrun*1/impala",
    "memory": "memory:3*2/8+lstm4",
    "pictures and memory": "minatar:freeway*1/conv+lstm4",
}
"""Tasks by their kind, all but one of them with environments that are not on tensors."""
ALL = "all together"
STEPS, KILLED_IN = 3, 3


def tasks_of(kind: str) -> tuple[str, ...]:
    """The tasks of a kind whose packages are installed."""
    wanted = ONES.values() if kind == ALL else (ONES[kind],)
    missing = tuple(f"{s.prefix}:" for s in SUITES if not s.installed())
    return tuple(task for task in wanted if not task.startswith(missing))


def config_of(kind: str, **changes: Any) -> DiscoverConfig:
    """A discovery on that kind, and on tensors."""
    net = NetConfig(torso=(8,), action_lstm=4, head_hidden=(5,), channels=(2, 2, 2), dense=6)
    return tiny_config(
        tasks=(*tasks_of(kind), "catch:4x4*2"),
        net=net,
        steps=STEPS,
        burn_in=1,
        replay_capacity=6,
        num_replayed=2,
        lifetimes=(4, 6),
        **changes,
    )


def ranks(size: int, action: Callable[[], object], room: Path) -> None:
    """Have the processes of a run do something, and wait."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def one(rank: int) -> None:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
        os.environ |= {k: str(v) for k, v in place.items()} | {"MASTER_ADDR": "127.0.0.1"}
        action()

    children = [forked.start(partial(one, i), room / f"said-{i}") for i in range(size)]
    ended = [child.wait() for child in children]
    if any(e.code not in (0, -signal.SIGKILL) for e in ended):
        sys.exit(f"{room}:\n" + "\n".join(e.err for e in ended))


def killed(config: DiscoverConfig) -> None:
    """A discovery that never gets to saving what it did in a meta-step."""
    honest, steps = module.meta_step, []

    def step(*args: Any) -> Any:
        result = honest(*args)
        steps.append(1)
        if len(steps) == KILLED_IN:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    module.meta_step = step
    module.discover(config)


def main(out: Path, kinds: list[str]) -> None:
    forked.import_everything()
    prefixes = {task.partition(":")[0] for task in ONES.values()}
    for suite in SUITES:
        if suite.prefix in prefixes and suite.package and suite.installed():
            importlib.import_module(suite.package)
    for kind in kinds:
        room = out / kind
        for name, size in (("one", 1), ("two", 2)):
            config = config_of(kind, out=room / name)
            ranks(size, partial(module.discover, config), room)
        config = config_of(kind, out=room / "killed")
        ranks(2, partial(killed, config), room)
        assert not (room / "killed" / "rule.npz").exists()
        ranks(2, partial(module.resume_discovery, room / "killed"), room)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
