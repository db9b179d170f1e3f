"""The runs that are attacked: one of every kind, and so small that a step takes milliseconds."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from discorl.cli import main
from discorl.discovery.discover import discover
from discorl.own_agent import DiscoTrainer, collect_rollout
from discorl.runs.checkpoint import CheckpointFolder
from tests.attacks.whole import digest
from tests.builders import random_rule_params
from tests.meta.population import tiny_config
from tests.own_agent.own_agents import Corridor, PlainAgent, small_rule

TINY = (
    *("--rule", "actor-critic", "--device", "cpu", "--threads", "1", "--progress", "lines"),
    *("--num-envs", "2", "--batch-size", "4", "--replay-capacity", "12", "--rollout-length", "5"),
    *("--net.torso", "8", "--net.action-lstm", "4", "--net.head-hidden", "4", "--log-every", "1"),
    *("--checkpoint.every-steps", "2", "--checkpoint.every-minutes", "None"),
)


class Program(Protocol):
    """A command that can be started in a folder and goes on in it after it was stopped."""

    @property
    def name(self) -> str:
        """What it is."""
        ...

    @property
    def is_exact(self) -> bool:
        """Whether going on gives the same bits as never having stopped."""
        ...

    def begin(self, folder: Path, steps: int) -> int:
        """Start it; returns the exit code."""
        ...

    def resume(self, folder: Path) -> int:
        """Go on; returns the exit code."""
        ...

    def saved_step(self, folder: Path) -> int:
        """How many steps are safe."""
        ...


@dataclass(frozen=True)
class Train:
    """``discorl train``."""

    name: str
    task: str
    options: tuple[str, ...] = ()
    is_exact: bool = True

    def begin(self, folder: Path, steps: int) -> int:
        args = ("--steps", str(steps), "--out", str(folder))
        return main(["train", self.task, *TINY, *self.options, *args])

    def resume(self, folder: Path) -> int:
        return main(["train", "--resume", str(folder)])

    def saved_step(self, folder: Path) -> int:
        return _newest(folder)


@dataclass(frozen=True)
class Discover:
    """A discovery, resumed by ``discorl discover``."""

    name: str = "discover"
    is_exact: bool = True

    def begin(self, folder: Path, steps: int) -> int:
        config = tiny_config(
            tasks=("bandit:3*2",), num_updates=1, steps=steps, checkpoint_every=2, threads=1
        )
        try:
            return 130 if discover(replace(config, out=folder, progress="lines")).interrupted else 0
        except KeyboardInterrupt:  # before there was a run; the command line does the same
            return 130

    def resume(self, folder: Path) -> int:
        return main(["discover", "--resume", str(folder)])

    def saved_step(self, folder: Path) -> int:
        return _newest(folder)


@dataclass(frozen=True)
class OwnScript:
    """A user's script around ``DiscoTrainer`` that saves its state after every other step."""

    name: str = "trainer"
    is_exact: bool = True

    def begin(self, folder: Path, steps: int) -> int:
        folder.mkdir(exist_ok=True)
        _replace(folder / "config.json", json.dumps({"steps": steps}).encode())
        return self.resume(folder)

    def resume(self, folder: Path) -> int:
        steps = json.loads((folder / "config.json").read_text())["steps"]
        torch.manual_seed(0)
        rule = small_rule()
        rule = small_rule(rule.rule, random_rule_params(rule.rule))
        agent = PlainAgent(rule.rule.heads(3))
        trainer = DiscoTrainer(agent, rule=rule, replay_capacity=7, batch_size=4, replay_ratio=2)
        env, logs = Corridor(), []
        if (folder / "state.pt").exists():
            saved = torch.load(folder / "state.pt", weights_only=True)
            trainer.load_state_dict(saved["trainer"])
            env.place[:], logs = saved["place"], saved["logs"]
        print(f"Resuming {folder} after step {len(logs)}")
        obs: Any = env.obs()
        while len(logs) < steps:
            rollout, obs, _ = collect_rollout(
                agent, env.step_fn, obs, None, rollout_len=5, generator=trainer.generator
            )
            logs.append(trainer.step(rollout))
            if len(logs) % 2 == 0:
                content = {"trainer": trainer.state_dict(), "place": env.place.tolist()}
                _save_state(folder / "state.pt", content | {"logs": logs})
        result = {"state": digest(trainer.state_dict()), "logs": logs}
        _replace(folder / "result.json", json.dumps(result).encode())
        return 0

    def saved_step(self, folder: Path) -> int:
        if not (folder / "state.pt").exists():
            return 0
        return len(torch.load(folder / "state.pt", weights_only=True)["logs"])


GYM = ("--env.normalize-observations",)
PROGRAMS: tuple[Program, ...] = (
    Train("train", "catch:4x3"),
    Train("gymnasium", "gym:CartPole-v1", GYM, is_exact=False),
    Train("async", "gym:CartPole-v1", (*GYM, "--workers", "async"), is_exact=False),
    Discover(),
    OwnScript(),
)


def go_on(program: Program, folder: Path, steps: int) -> int:
    """What a user does after a crash: resume what was begun, else begin again."""
    if (folder / "config.json").exists():
        return program.resume(folder)
    return program.begin(folder, steps)


def _newest(folder: Path) -> int:
    return max(CheckpointFolder(folder / "checkpoints").steps(), default=0)


def _save_state(path: Path, content: dict[str, Any]) -> None:
    beside = path.with_suffix(".new")
    with open(beside, "wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def _replace(path: Path, data: bytes) -> None:
    beside = path.with_suffix(".new")
    beside.write_bytes(data)
    os.replace(beside, path)
