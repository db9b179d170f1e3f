"""Kinds of files, and everything of ours that reads them."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from discorl.cli.rules import _show, _verify
from discorl.comparison.compare import compare
from discorl.comparison.report import html_report
from discorl.comparison.table import print_comparison
from discorl.discovery import discover as discovery_module
from discorl.discovery.discover import Discovering, resume_discovery
from discorl.rules.store import load_rule
from discorl.training.evaluate import evaluate
from discorl.training.rule_choice import read_config
from discorl.training.train import Training, resume
from discorl.training.trained_agent import load_agent
from tests.attacks import bombs, forked
from tests.attacks.archives import mutate_archive
from tests.attacks.mutations import mutate_bytes, mutate_json
from tests.attacks.programs import PROGRAMS, Program
from tests.attacks.trees import mutate_tree
from tests.builders import write_small_rule

Mutation = Callable[[random.Random, bytes, Path], bytes]
"""Other bytes for a file; pickles in them make the folder at the path."""
STEPS = 3
TRAIN, GYM, _, DISCOVER, _ = PROGRAMS


@dataclass(frozen=True)
class Target:
    """A kind of file: where it is in a folder, how it is attacked, and who reads it."""

    name: str
    file: str
    prepare: Callable[[Path], None]
    """Makes a folder with a valid file, and all that its readers need besides."""
    mutate: Mutation
    readers: tuple[Callable[[Path], Any], ...]
    """Who reads the file in a folder: each of them returns, or raises a ``DiscorlError``."""
    bombs: tuple[Callable[[], bytes], ...] = ()

    @property
    def is_text(self) -> bool:
        """Whether no length or checksum in the file depends on its other bytes."""
        return self.file.endswith((".json", ".jsonl"))


def _rule_folder(folder: Path) -> None:
    write_small_rule(folder / "rule.npz")


def _run_folder(program: Program) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        assert program.begin(folder / "run", STEPS) == 0

    return prepare


def _read_rule(folder: Path) -> None:
    path = str(folder / "rule.npz")
    _verify(path)
    _show(path)
    loaded = load_rule(path)
    returns, head = loaded.rule.returns, loaded.rule.value_head
    for share in (returns.discount, returns.lambda_):
        assert 0 <= share <= 1, f"verify accepted {returns}"
    assert head is None or head.max_abs > 0, f"verify accepted {head}"


def _read_agent(folder: Path) -> None:
    agent = load_agent(folder / "run")
    evaluate(agent, episodes=1, num_envs=1, max_steps=3)


def _resume(folder: Path) -> None:
    config, _ = read_config(folder / "run")
    resume(replace(config, progress="none"))


def _resume_discovery(folder: Path) -> None:
    resume_discovery(folder / "run", progress="none")


def _compare(folder: Path) -> None:
    comparison = compare([folder / "run"], samples=100)
    print_comparison(comparison, Console())
    html_report(comparison)
    json.dumps(comparison.as_dict())


def _archive(rng: random.Random, data: bytes, canary: Path) -> bytes:
    return mutate_archive(rng, data, canary)


def _sealed(rng: random.Random, data: bytes, canary: Path) -> bytes:
    return mutate_tree(rng, data)


def _damaged(rng: random.Random, data: bytes, canary: Path) -> bytes:
    return mutate_bytes(rng, data)


def _config(rng: random.Random, data: bytes, canary: Path) -> bytes:
    if rng.random() < 0.1:
        return mutate_bytes(rng, data)
    text = mutate_json(rng, json.loads(data))
    text = re.sub('"compile": (true|1)', '"compile": false', text)  # which may well take a minute
    return text.encode("utf-8", "surrogatepass")


def _metrics(rng: random.Random, data: bytes, canary: Path) -> bytes:
    if rng.random() < 0.2:
        return mutate_bytes(rng, data)
    lines = data.splitlines(keepends=True)
    rows = [json.loads(line) for line in lines]
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, what = rng.randrange(len(lines)), rng.random()
        if what < 0.6:
            row = " ".join(mutate_json(rng, rng.choice(rows)).split("\n"))
            lines[at] = row.encode("utf-8", "surrogatepass") + b"\n"
        elif what < 0.7:
            lines.insert(at, lines[rng.randrange(len(lines))])
        elif what < 0.8 and len(lines) > 1:
            del lines[at]
        elif what < 0.9:
            rng.shuffle(lines)
        else:
            lines[at] = mutate_bytes(rng, lines[at])
    return b"".join(lines)


_CHECKPOINT = f"run/checkpoints/checkpoint-{STEPS}.dc"
_train, _gym, _discovery = map(_run_folder, (TRAIN, GYM, DISCOVER))
_TEXTS, _ARCHIVES, _HEADERS = bombs.TEXTS, bombs.ARCHIVES, bombs.HEADERS
TARGETS = (
    Target("rule", "rule.npz", _rule_folder, _archive, (_read_rule,), _ARCHIVES),
    Target("agent", "run/agent.npz", _train, _archive, (_read_agent,), _ARCHIVES),
    Target("env", "run/env.npz", _gym, _archive, (_read_agent,), _ARCHIVES),
    Target("checkpoint", _CHECKPOINT, _train, _sealed, (_resume,), _HEADERS),
    Target("checkpoint-gym", _CHECKPOINT, _gym, _sealed, (_resume,), _HEADERS),
    Target("checkpoint-discover", _CHECKPOINT, _discovery, _sealed, (_resume_discovery,), _HEADERS),
    Target("damaged", _CHECKPOINT, _train, _damaged, (_resume,)),
    Target("config", "run/config.json", _train, _config, (_read_agent, _compare, _resume), _TEXTS),
    Target("config-discover", "run/config.json", _discovery, _config, (_resume_discovery,), _TEXTS),
    Target("metrics", "run/metrics.jsonl", _train, _metrics, (_compare, _resume), _TEXTS),
)


def make_original(target: Target, room: Path) -> Path:
    """A folder with the valid file; made once for each room, in a process of its own."""
    folder = room / "original"
    if not (folder / target.file).exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        ended = forked.run(lambda: target.prepare(folder), room / "original.said")
        if ended.code != 0:
            raise RuntimeError(f"there is no valid {target.name}: {ended.last_words}")
        # One that is whole must not stand in for the one that is attacked.
        for path in (folder / "run" / "checkpoints").glob("*.dc"):
            if path.name != Path(_CHECKPOINT).name:
                path.unlink()
    return folder


def make_cheap() -> None:
    """In a process that reads many files: no pictures, and one step is enough of a run."""
    from matplotlib.figure import Figure

    Figure.savefig = lambda self, *args, **kwargs: None
    for program in (Training, Discovering):
        program.step = _stopped_after(program.step)
    discovery_module.plot_discovery = lambda *args: None


def _stopped_after(step: Callable[..., None]) -> Callable[..., None]:
    def step_and_stop(self: Any, folder: Path) -> None:
        step(self, folder)
        raise KeyboardInterrupt

    return step_and_stop
