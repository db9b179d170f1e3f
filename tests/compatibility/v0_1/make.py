"""Makes the files in this folder: what discorl 0.1.0 writes, and what it does with them.

Run it only with the version that is to be preserved, here 0.1.0, from the root of the repository:

    python -m tests.compatibility.v0_1.make

What is in the folder stays as it is for good: a later version must read it, and making it anew
would only show that a version reads its own files. A version that writes anything in another way
gets a folder of its own beside this one, made by a copy of this script, and its own test.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

import discorl
from tests.compatibility.record import (
    arrays,
    compact,
    fingerprint,
    run_command,
    run_record,
    tensors,
    write_record,
)
from tests.compatibility.v0_1.agent import KINDS, make_trainer, walk

HERE = Path(__file__).parent
VERSION = "0.1.0"

SMALL = (
    "--device cpu --progress none --num-envs 3 --rollout-length 6 --batch-size 4 "
    "--replay-capacity 6 --updates-per-step 2 --log-every 1 "
    "--net.torso 6 --net.action-lstm 4 --net.head-hidden 5 --checkpoint.keep 1"
)
TRAIN = {
    # Checkpoints only at every fourth step, so that the last lines of its metrics are written
    # again when it goes on: see STOPPED.
    "catch": "catch:5x4 --rule disco-mini --steps 6 --checkpoint.every-steps 4 --checkpoint.keep 2",
    "cartpole": "gym:CartPole-v1 --rule disco-mini --normalize-observations --steps 4",
    "memory": "memory:3 --rule disco-mini --net.core-lstm 5 --burn-in 2 --steps 4 --seed 3",
    "actor-critic": "cartpole --rule actor-critic --actor-critic.num-bins 11 --steps 4 "
    "--actor-critic.normalize-advantage --optimiser.schedule cosine --replay-transitions 36",
    "policy-gradient": "catch:4x4 --rule policy-gradient --steps 4",
    "own-rule": "catch:4x3 --rule discover-plain/rule.npz --steps 4",
    "pong": "ale:Pong --rule disco-mini --steps 4 --num-envs 1 --rollout-length 3 --batch-size 2 "
    "--replay-transitions 9 --image-size 42 --optimiser.warmup-steps 6 --net.torso-kind nature "
    "--net.channels 2 2 2 --net.dense 5",
}
"""Runs of ``discorl train``; each is resumed for a few more steps and evaluated."""
STOPPED = ("catch",)
"""Runs whose last checkpoint is taken away, as if they had been killed before it."""
MORE, MORE_META = 3, 2
RULES = ("rule.npz", "discover-sliding/rule.npz")

SMALL_DISCOVERY = (
    "--device cpu --progress none --log-every 1 --checkpoint-every 2 --keep-checkpoints 1 "
    "--eval-agents 1 --eval-updates 2 --rule.prediction-size 4 --rule.hidden 5 "
    "--rule.lifetime-hidden 4 --rule.embedding-width 3 --rule.num-bins 9 --rule.max-abs-value 5 "
    "--net.torso 5 --net.action-lstm 4 --net.head-hidden 4 --meta-value.torso 4 "
    "--window.num-envs 2 --window.rollout-length 4 --window.valid-length 5 --steps 3"
)
DISCOVER = {
    "discover-plain": "suite --tasks catch:4x3*2 chain:5 --held-out catch:5x4 --warm-start 1 "
    "--lifetimes 6 10 --window.num-updates 2 --window.num-replayed 1 --window.replay-capacity 4",
    "discover-sliding": "notebook --tasks catch:4x3*2 --held-out --window.num-updates 3 "
    "--window.stride 1 --window.memory recompute",
}
"""Runs of ``discorl discover``; each is resumed, too."""

COMPARED = [
    f"{task} --rule {rule} --seed {seed} --steps {5 + seed} --checkpoint.every-minutes None"
    for task in ("catch:4x4", "umbrella:5")
    for rule in ("actor-critic", "policy-gradient")
    for seed in (0, 1)
]
EVALUATE = "--episodes 6 --seeds 0 5 --num-envs 3 --max-steps 40 --device cpu"
COMPARE = "--bootstrap 200 --html comparison.html --json comparison.json"


def make_runs() -> None:
    """Run folders below the working directory. All paths are relative, so no machine is in them."""
    for name, command in DISCOVER.items():
        run_command("discover", *command.split(), *SMALL_DISCOVERY.split(), "--out", name)
        shutil.rmtree(f"{name}/snapshots")
    for name, command in TRAIN.items():
        run_command(
            "train", *command.split()[:1], *SMALL.split(), *command.split()[1:], "--out", name
        )
    for name in STOPPED:
        max(Path(name, "checkpoints").iterdir()).unlink()
    for i, command in enumerate(COMPARED):
        task, *rest = command.split()
        name = f"compare/{i}"
        run_command("train", task, *SMALL.split(), *rest, "--out", name)
        Path(name, "agent.npz").unlink()  # compare reads the metrics alone
    for picture in Path().rglob("curve.png"):
        picture.unlink()
    for path in Path().rglob("config.json"):
        _scrub(path)


def _scrub(path: Path) -> None:
    """Rules that ship with discorl are found by name; where they were then tells nobody anything.

    A rule of the user's own is found by its path, here relative to this folder.
    """
    content = json.loads(path.read_text())
    rule = content.get("resolved_rule")
    if rule and rule["path"]:
        rule["path"] = str(Path(rule["path"]).relative_to(_base(Path(rule["path"]))))
        path.write_text(json.dumps(content, indent=2) + "\n")


def _base(path: Path) -> Path:
    return Path.cwd() if path.is_relative_to(Path.cwd()) else Path(discorl.__file__).parents[1]


def make_other_files() -> None:
    """The states of trainers, and a rule as ``save_rule`` writes it."""
    torch.set_num_threads(1)
    for kind in KINDS:
        trainer = make_trainer(kind, seed=1)
        walk(trainer, 4)
        torch.save(trainer.state_dict(), f"trainer-{kind}.pt")
    loaded = discorl.load_rule("discover-plain/rule.npz")
    discorl.save_rule(Path("rule.npz"), loaded.rule, loaded.params, {"made_by": "save_rule"})


def expected() -> dict[str, Any]:
    """What this version does with the files in the working directory, which it changes."""
    found: dict[str, Any] = {"evaluate": {}, "resume": {}, "trainer": {}, "rule": {}}
    for name in TRAIN:
        found["evaluate"][name] = evaluated(name)
    found["compare"] = compared()
    for name in TRAIN:
        found["resume"][name] = resumed("train", name, MORE)
    for name in RULES:
        found["rule"][name] = rule_record(name)
    for name in DISCOVER:
        found["resume"][name] = resumed("discover", name, MORE_META)
    for kind in KINDS:
        found["trainer"][kind] = trained_on(kind)
    return found


def evaluated(name: str) -> dict[str, Any]:
    """The episodes that an agent plays."""
    run_command("evaluate", name, *EVALUATE.split(), "--json", f"{name}.json")
    return json.loads(Path(f"{name}.json").read_text())


def compared() -> dict[str, Any]:
    """All numbers of ``discorl compare``, on runs whose times are those of the fixture."""
    run_command("compare", "compare", *COMPARE.split())
    assert Path("comparison.html").stat().st_size > 10_000
    return compact(json.loads(Path("comparison.json").read_text()))


def resumed(command: str, name: str, more: int) -> dict[str, Any]:
    """A run folder after it went on for a few steps."""
    steps = json.loads(Path(name, "config.json").read_text())["steps"] + more
    run_command(command, "--resume", name, "--steps", str(steps))
    return run_record(Path(name))


def rule_record(path: str) -> dict[str, Any]:
    """A rule as it is loaded, what the command line says about it, and its export."""
    loaded = discorl.load_rule(path)
    run_command("rules", "verify", path)
    said = run_command("rules", "show", path).splitlines()
    run_command("rules", "export", path, "exported.npz")
    return {
        "name": loaded.name,
        "params": tensors(loaded.params),
        "show": [" ".join(line.split()) for line in said[1:]],  # the first line is where it is
        "export": arrays(Path("exported.npz")),
    }


def trained_on(kind: str) -> dict[str, Any]:
    """A trainer that goes on from its saved state."""
    trainer = make_trainer(kind, seed=2)  # nothing of its own may remain
    trainer.load_state_dict(torch.load(f"trainer-{kind}.pt", weights_only=True))
    logs = walk(trainer, 3)
    return {"logs": logs, "agent": tensors(trainer.agent.state_dict())}


def main() -> None:
    """Make everything, twice: what is recorded must be the same both times."""
    assert discorl.__version__ == VERSION, f"this is discorl {discorl.__version__}"
    if (HERE / "expected.json").exists():
        raise SystemExit(f"{HERE} is made already, and stays as it is")
    with tempfile.TemporaryDirectory() as folder:
        made, copies = Path(folder, "made"), [Path(folder, str(i)) for i in range(2)]
        made.mkdir()
        with contextlib.chdir(made):
            make_runs()
            make_other_files()
        records = []
        for copy in copies:
            shutil.copytree(made, copy)
            with contextlib.chdir(copy):
                records.append(expected())
        assert json.dumps(records[0]) == json.dumps(records[1]), "not the same twice"
        shutil.copytree(made, HERE, dirs_exist_ok=True)
    content = {"version": VERSION, "machine": fingerprint(), **records[0]}
    write_record(HERE / "expected.json", content)


if __name__ == "__main__":
    main()
