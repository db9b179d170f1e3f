"""The command line, as a user meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from discorl.cli import main
from discorl.cli.parse import value_of
from discorl.rules.store import load_rule
from discorl.runs.files import load_params
from discorl.runs.metrics import TIMING_FIELDS
from tests.builders import assert_bit_equal, run_cli, write_small_rule

TINY = (
    *("--steps", "6", "--log-every", "1", "--device", "cpu"),
    *("--num-envs", "2", "--batch-size", "4", "--replay-capacity", "8", "--rollout-length", "5"),
    *("--net.torso", "8", "--net.action-lstm", "4", "--net.head-hidden", "4"),
)


def metrics(folder: Path) -> list[dict]:
    """What the run logged, but for how long it took."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(x).items() if k not in TIMING_FIELDS} for x in lines]


# --- runs ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two runs that should be equal, and one with another seed."""
    root = tmp_path_factory.mktemp("runs")
    rule = write_small_rule(root / "rule.npz")
    folders = {}
    for name, seed in (("first", "3"), ("again", "3"), ("other", "4")):
        folders[name] = root / name
        done = run_cli(
            *("train", "catch:4x3", "--rule", rule, "--seed", seed, "--out", folders[name]), *TINY
        )
        assert done.returncode == 0, done.stderr
        assert "step 6/6" in done.stdout
        assert str(folders[name] / "curve.png") in done.stdout.replace("\n", "")
        assert done.stderr == ""
    return folders


def test_a_run_leaves_its_folder(runs: dict[str, Path]) -> None:
    folder = runs["first"]
    assert {p.name for p in folder.iterdir()} == {
        "config.json",
        "metrics.jsonl",
        "curve.png",
        "agent.npz",
        "checkpoints",
    }
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")

    config = json.loads((folder / "config.json").read_text())
    assert (config["task"], config["rule"], config["seed"]) == ("catch:4x3", "rule", 3)
    assert (config["device"], config["out"]) == ("cpu", str(folder))
    net = config["net"]
    assert (net["torso"], net["action_lstm"], net["head_hidden"]) == ([8], 4, [4])
    assert config["optimiser"]["learning_rate"] == 0.01

    rows = metrics(folder)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["env_steps"] for row in rows] == [10, 20, 30, 40, 50, 60]
    # Episodes have 3 actions. Of each environment, 4 are seen to their end after the first rollout,
    # and 9 after the second.
    assert [row["episodes"] for row in rows][:2] == [2, 6]
    assert [("loss" in row) for row in rows] == [False, True, True, True, True, True]
    assert {"return", "success", "loss/pi", "loss/q", "gradient_norm"} <= rows[-1].keys()

    params = load_params(folder / "agent.npz")
    assert params["torso.mlp.layers.0.weight"].shape == (8, 12)
    assert params["flat_heads.logits.bias"].shape == (3,)


def test_two_runs_with_a_seed_are_bit_equal(runs: dict[str, Path]) -> None:
    first, again = (load_params(runs[name] / "agent.npz") for name in ("first", "again"))
    assert first.keys() == again.keys()
    assert_bit_equal(first, again)
    assert (runs["first"] / "agent.npz").read_bytes() == (runs["again"] / "agent.npz").read_bytes()
    assert metrics(runs["first"]) == metrics(runs["again"])


def test_another_seed_is_another_run(runs: dict[str, Path]) -> None:
    first, other = (load_params(runs[name] / "agent.npz") for name in ("first", "other"))
    assert not np.array_equal(
        first["torso.mlp.layers.0.weight"], other["torso.mlp.layers.0.weight"]
    )
    assert metrics(runs["first"]) != metrics(runs["other"])


def test_ctrl_c_keeps_what_there_is(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    args = ["train", "catch:4x3", "--rule", "policy-gradient", "--out", str(folder), *TINY]
    args[args.index("--steps") + 1] = "10000000"
    process = subprocess.Popen(
        [sys.executable, "-m", "discorl", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    log = folder / "metrics.jsonl"
    for _ in range(1200):
        if process.poll() is not None or (log.exists() and log.read_text().count("\n") > 5):
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=1800)
    assert process.returncode == 130, err
    assert "Stopped by Ctrl-C" in out
    assert "Traceback" not in err
    assert {"config.json", "metrics.jsonl", "curve.png", "agent.npz"} <= set(os.listdir(folder))
    assert metrics(folder)[-1]["step"] >= 5
    assert all(p.isfinite().all() for p in load_params(folder / "agent.npz").values())


def test_default_rule_without_disco103(tmp_path: Path) -> None:
    """It trains with the best rule at hand and says how to get the other."""
    env = {"DISCORL_DISCO103": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    env["MPLCONFIGDIR"] = matplotlib.get_cachedir()  # else it would list all fonts anew
    done = run_cli("train", "--out", tmp_path / "run", *TINY, env=env)
    assert done.returncode == 0, done.stderr
    assert "discorl rules fetch" in done.stdout.replace("\n", " ")
    resolved = json.loads((tmp_path / "run" / "config.json").read_text())["rule"]
    assert resolved not in ("auto", "disco103")


def test_gymnasium_task(tmp_path: Path) -> None:
    done = run_cli(
        *("train", "gym:CartPole-v1", "--rule", "actor-critic", "--out", tmp_path / "run"),
        *("--actor-critic.num-bins", "None"),
        *TINY,
    )
    assert done.returncode == 0, done.stderr
    assert len(metrics(tmp_path / "run")) == 6


def test_runs_below_the_current_folder_by_default(tmp_path: Path) -> None:
    done = run_cli("train", "catch:3x3", "--rule", "policy-gradient", *TINY, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("catch-3x3-policy-gradient-")
    assert (folder / "agent.npz").exists()


# --- bad input -----------------------------------------------------------------------------------

BAD = {
    "unknown environment": (["train", "pong"], "no environment is called 'pong'"),
    "impossible board": (["train", "catch:1x3"], "2 rows"),
    "unknown gym id": (["train", "gym:NoSuchEnv-v0"], "NoSuchEnv"),
    "gym id in a missing module": (["train", "gym:no_such_module:Env-v0"], "no_such_module"),
    "too many actions": (
        ["train", "gym:Pendulum-v1", "--action-bins", "2000"],
        "--action-bins 1024",
    ),
    "unknown rule": (["train", "--rule", "disco999"], "no rule is called 'disco999'"),
    "missing rule file": (["train", "--rule", "gone.npz"], "no such rule file: gone.npz"),
    "broken rule file": (["train", "--rule", "broken.npz"], "broken.npz is not a rule file"),
    "existing run folder": (["train", "--out", "old"], "old already holds a run"),
    "out is a file": (["train", "--out", "broken.npz"], "choose another --out"),
    "out below a file": (["train", "--out", "broken.npz/run"], "choose another --out"),
    "unknown device": (["train", "--device", "abacus"], "device 'abacus'"),
    "device without memory": (["train", "--device", "meta"], "device 'meta'"),
    "small replay": (["train", "--replay-capacity", "3"], "is below --batch-size 4"),
    "no steps": (["train", "--steps", "0"], "error: --steps must be at least 1"),
    "short rollout": (["train", "--rollout-length", "1"], "error: --rollout-length must be"),
    "bad learning rate": (
        ["train", "--optimiser.learning-rate", "nan"],
        "--optimiser.learning-rate",
    ),
    "huge seed": (["train", "--seed", "9223372036854775807"], "seed"),
    "negative discount": (["train", "--returns.discount", "-1"], "--returns.discount"),
    "trace": (["train", "--returns.lambda", "-1"], "error: --returns.lambda must"),
    "one bin": (
        ["train", "--rule", "actor-critic", "--actor-critic.num-bins", "1"],
        "needs at least 2 bins",
    ),
    "target rate": (["train", "--disco.target-rate", "1.5"], "error: --disco.target-rate must"),
    "huge seed of discovery": (["discover", "--seed", "10000000000000000"], "seed"),
    "no meta-value": (
        ["discover", "suite", "--meta-value.torso"],
        "torso needs one or more layers",
    ),
    "a part that a rule has": (
        ["discover", "--init", "whole.npz", "--rule.no-value"],
        "--rule.no-value: the rule whole.npz has that part",
    ),
    "no discovery": (["discover", "--resume", "list"], "not the configuration of a run"),
    "broken rule to verify": (["rules", "verify", "broken.npz"], "broken.npz is not a rule file"),
    "missing rule to show": (["rules", "show", "gone.npz"], "no such rule file"),
    "export to another kind": (["rules", "export", "whole.npz", "rule.txt"], "must end in .npz"),
    "export below a file": (["rules", "export", "whole.npz", "broken.npz/x.npz"], "broken.npz"),
    "unknown command": (["fly"], "no command is called 'fly'"),
    "misspelt command": (["trian"], "no command is called 'trian'; did you mean 'train'?"),
    "misspelt option": (["train", "--stepz", "3"], "'--stepz'; did you mean '--steps'?"),
    "no such option": (["train", "--colour", "3"], "'--colour'; 'discorl train catch --help-all'"),
    "no number": (["train", "--steps", "three"], "--steps: 'three' is not a whole number"),
    "two tasks": (["train", "catch", "cartpole"], "one task at a time"),
    "misspelt task": (["train", "cach"], "did you mean 'catch'?"),
    "task without gym": (["train", "CartPole-v1"], "did you mean 'gym:CartPole-v1'?"),
    "task without suite": (["train", "Pong"], "did you mean 'ale:Pong'?"),
    "misspelt rule": (["train", "--rule", "actor_critic"], "did you mean 'actor-critic'?"),
    "rule of others": (
        ["train", "--rule", "ppo"],
        "use disco103, disco-mini, cmpo, actor-critic, policy-gradient, or the path of a .npz file",
    ),
    "misspelt preset": (["discover", "siute"], "did you mean 'suite'?"),
    "two presets": (["discover", "suite", "paper"], "one preset at a time"),
    "misspelt rules command": (["rules", "shwo"], "'rules shwo'; did you mean 'show'?"),
    "misspelt option of a function": (["evaluate", "run", "--gready"], "did you mean '--greedy'?"),
}


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a whole rule, a broken one, an old run and what is none."""
    write_small_rule(tmp_path / "whole.npz")
    (tmp_path / "broken.npz").write_text("not a rule")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_text("{}")
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "config.json").write_text("[]")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def full_command(args: list[str]) -> list[str]:
    """Rule and budget for those that would otherwise train for long."""
    if args[0] != "train":
        return args
    given = {a for a in args if a.startswith("--")}
    pairs = list(zip(TINY[::2], TINY[1::2], strict=True))
    pairs += [("--rule", "policy-gradient")]
    return args + [x for pair in pairs if pair[0] not in given for x in pair]


def assert_one_line_error(code: int | str | None, err: str, words: str) -> None:
    assert code not in (0, None)
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    assert words in err
    assert "Traceback" not in err


@pytest.mark.usefixtures("workshop")
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    args, words = BAD[case]
    code = main(full_command(args))
    captured = capsys.readouterr()
    assert_one_line_error(code, captured.err, words)
    assert not Path("runs").exists(), "nothing is left behind"


@pytest.mark.parametrize("case", ["unknown environment", "broken rule file", "too many actions"])
def test_bad_input_of_the_real_process(case: str, workshop: Path) -> None:
    args, words = BAD[case]
    done = run_cli(*full_command(args), cwd=workshop)
    assert_one_line_error(done.returncode, done.stderr, words)


# --- help ----------------------------------------------------------------------------------------

HELP = {
    "": ["train", "rules", "envs", "Examples"],
    "train": ["--steps", "1000", "--optimiser.learning-rate", "0.01", "--net.*", "--help-all"],
    "train catch --rule disco103 --help-all": ["--net.torso", "512 512"],
    "train gym:CartPole-v1 --rule disco103": ["gym:CartPole-v1", "0.003", "--num-envs", "16"],
    "envs": ["tasks"],
    "rules": ["list", "show", "fetch", "verify", "export"],
    "rules list": ["update rules"],
    "rules show": ["Name of a rule, or path"],
    "rules fetch": ["Download"],
    "rules verify": ["Name of a rule, or path", "disco103"],
    "rules export": ["Name of a rule, or path", ".npz file to write"],
}


@pytest.mark.parametrize("command", HELP)
def test_help_teaches(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    args = [*command.split(), "--help"]
    try:
        code = main(args)
    except SystemExit as stopped:
        code = stopped.code
    assert not code
    out = capsys.readouterr().out
    for word in HELP[command]:
        assert word in out, word


def test_without_arguments_it_shows_the_usage() -> None:
    done = run_cli()
    assert done.returncode != 0
    assert "discorl train" in done.stdout
    assert run_cli("--version").stdout.startswith("discorl ")


# --- envs and rules ------------------------------------------------------------------------------


def test_envs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs"]) == 0
    out = capsys.readouterr().out
    assert "catch" in out
    assert "gym:ID" in out


def test_rules_list(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DISCORL_DISCO103", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["rules", "list"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert {"disco103", "cmpo", "actor-critic", "policy-gradient"} <= set(names)


def test_rules_list_with_a_wrong_path(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISCORL_DISCO103", "/no/such/file.npz")
    assert main(["rules", "list"]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert "DISCORL_DISCO103 is set to /no/such/file.npz, which is not a file" in first
    assert [line.split()[0] for line in others][1:] == ["cmpo", "actor-critic", "policy-gradient"]


@pytest.mark.parametrize(
    "rule, words",
    [
        ("cmpo", ["discorl.CMPO", "aux_pi, q", "--cmpo.strength FLOAT", "(default: 1.0)"]),
        ("actor-critic", ["logits, v", "--actor-critic.num-bins INT|None", "--returns.lambda"]),
        ("policy-gradient", ["predict logits", "--policy-gradient.entropy-cost"]),
    ],
)
def test_rules_show_of_built_in_rules(
    rule: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rules", "show", rule]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{rule}: ") and "no learnt parameters" in out
    for word in words:
        assert word in out


def test_rules_show(workshop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "show", "whole.npz"]) == 0
    out = capsys.readouterr().out
    assert f"{load_rule(workshop / 'whole.npz').num_params:,} in 42 arrays" in out
    assert "hidden=5" in out
    assert "num_bins=11" in out
    assert "a test" in out


@pytest.mark.usefixtures("workshop")
def test_rules_verify(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "verify", "whole.npz"]) == 0
    assert capsys.readouterr().out.startswith("ok: whole.npz (42 arrays")


def test_rules_export(workshop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "export", "whole.npz", "deep/copy.npz"]) == 0
    assert "saved" in capsys.readouterr().out
    assert (workshop / "deep" / "copy.npz").read_bytes() == (workshop / "whole.npz").read_bytes()


@pytest.mark.disco103
def test_rules_of_the_public_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "verify"]) == 0
    assert "42 arrays, 754,778 parameters" in capsys.readouterr().out
    assert main(["rules", "fetch"]) == 0
    assert "already here" in capsys.readouterr().out


@pytest.mark.parametrize(
    "args, value",
    [
        ([], None),
        (["--steps", "3"], None),
        (["--rule", "a"], "a"),
        (["--steps", "3", "--rule=b"], "b"),
        (["--rule"], None),
    ],
)
def test_options_that_others_take_their_defaults_from(args: list[str], value: str | None) -> None:
    assert value_of("--rule", args) == value
