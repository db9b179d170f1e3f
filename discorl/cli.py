"""The command line. The only user of tyro."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import tyro
from rich.console import Console

from discorl import __version__
from discorl.config import CheckpointConfig
from discorl.errors import DiscorlError

T = TypeVar("T")

_format_warning = warnings.formatwarning

USAGE = """\
discorl: train RL agents with a learned update rule.

  discorl train [TASK] [options]     train an agent; TASK is catch, catch:10x5, gym:CartPole-v1 ...
  discorl train --resume RUN         go on with a run from its last checkpoint
  discorl train [TASK] --help        every setting of that task, with its default
  discorl discover [PRESET] [options]  discover a rule; PRESET is suite, notebook or paper
  discorl evaluate RUN               play episodes with a trained agent; --video FILE films one
  discorl compare RUN...             rules side by side: a table and an HTML report
  discorl envs                       the tasks there are
  discorl rules list                 the update rules on this machine
  discorl rules show RULE            sizes, settings and provenance of a rule
  discorl rules fetch                download Disco103, verified
  discorl rules verify [RULE]        check a rule file
  discorl rules export RULE FILE     write a rule as a file that the JAX reference can load too

Examples:
  discorl train catch                            the best rule on this machine, about 3 minutes
  discorl train catch --rule actor-critic        the same with the baseline
  discorl train ale:Breakout --preset paper      the published settings instead of small ones
  discorl train ale:Pong --sticky 0              an option of its suite; --help explains all
  discorl train gym:CartPole-v1 --seed 1 --optimiser.learning-rate 1e-3
  discorl train --resume runs/catch-1            go on where it stopped, to the last bit
  torchrun --nproc-per-node 2 -m discorl train   two processes share environments and batch
"""


def main(argv: list[str] | None = None) -> int:
    """Run a command; errors that the user can mend are one line, without a traceback."""
    args = sys.argv[1:] if argv is None else argv
    commands: dict[str, Callable[[list[str]], int]] = {
        "train": _train,
        "discover": _discover,
        "compare": _compare,
        "evaluate": _evaluate,
        "envs": _envs,
        "rules": _rules,
    }
    if not args or args[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0 if args else 2
    if args[0] in ("-V", "--version", "version"):
        print(f"discorl {__version__}")
        return 0
    if args[0] not in commands:
        print(f"error: no command is called '{args[0]}'; see 'discorl --help'", file=sys.stderr)
        return 2
    warnings.formatwarning = _one_line
    try:
        return commands[args[0]](args[1:])
    except DiscorlError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    except OSError as e:
        print(f"error: {e.strerror or e}: {e.filename or ''}".rstrip(": "), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


def _one_line(message: Warning | str, category: type[Warning], *where: Any) -> str:
    """Our own warnings are for the user, who has no use for the line of code."""
    if issubclass(category, UserWarning):
        return f"warning: {message}\n"
    return _format_warning(message, category, *where)


def _train(args: list[str]) -> int:
    from discorl import presets
    from discorl.config import TrainConfig
    from discorl.runs.train import train

    if any(a == "--resume" or a.startswith("--resume=") for a in args):
        return _resume(args)
    task = "catch"
    if args and not args[0].startswith("-"):
        task, args = args[0], args[1:]
    default = presets.for_task(task, _value_of("--preset", args) or "small")
    default = presets.for_rule(default, _value_of("--rule", args) or default.rule)
    config = _parse(
        TrainConfig,
        prog=f"discorl train {task}",
        description=f"Train an agent on {task}. The defaults below are those of this task.",
        default=default,
        args=[_long_name(arg, task) for arg in args],
        config=(tyro.conf.AvoidSubcommands,),  # of the suites' options, the task's own are meant
    )
    if config.task != task:
        raise DiscorlError(f"name the task first, as in 'discorl train {config.task}'")
    return 130 if train(config).interrupted else 0


@dataclass(frozen=True)
class ResumeArgs:
    """Go on with a run from its last checkpoint, with its own settings but for these."""

    resume: Path
    """Folder of the run."""
    steps: int
    """Training steps of the whole run; raise it to train for longer."""
    checkpoint: CheckpointConfig
    log: str
    """Where metrics go besides metrics.jsonl: tensorboard, wandb, or both with a comma."""
    progress: Literal["auto", "bar", "lines", "none"]
    """How progress is shown; auto draws a bar on a terminal and prints lines elsewhere."""


def _resume(args: list[str]) -> int:
    from discorl.runs.run_config import read_config
    from discorl.runs.train import resume

    i = next(i for i, a in enumerate(args) if a.startswith("--resume"))
    given = args[i].partition("=")[2] or (args[i + 1] if i + 1 < len(args) else "")
    if not given or given.startswith("-"):
        raise DiscorlError("--resume needs the folder of a run, as in --resume runs/catch-1")
    config, _ = read_config(Path(given))
    if args[0] == config.task:
        args = args[1:]
    kept = {f.name: getattr(config, f.name) for f in fields(ResumeArgs) if f.name != "resume"}
    changes = _parse(
        ResumeArgs,
        prog="discorl train --resume RUN",
        description="Go on with a run. Its other settings stay as they were.",
        default=ResumeArgs(Path(given), **kept),
        args=args,
    )
    changed = {name: getattr(changes, name) for name in kept}
    return 130 if resume(replace(config, **changed)).interrupted else 0


def _discover(args: list[str]) -> int:
    from discorl.discover_presets import PRESETS, discovery_preset
    from discorl.runs.discover import discover, resume_discovery
    from discorl.runs.discover_config import DiscoverConfig

    if any(a == "--resume" or a.startswith("--resume=") for a in args):
        changes = _parse(
            ResumeDiscoveryArgs,
            prog="discorl discover --resume RUN",
            description="Go on with the discovery of a rule, exactly where it stopped.",
            args=args,
        )
        changed: dict[str, Any] = {"progress": changes.progress}
        if changes.steps is not None:
            changed |= {"steps": changes.steps}
        return 130 if resume_discovery(changes.resume, **changed).interrupted else 0
    preset = "suite"
    if args and not args[0].startswith("-"):
        preset, args = args[0], args[1:]
    config = _parse(
        DiscoverConfig,
        prog=f"discorl discover {preset}",
        description=(
            f"Discover an update rule. Presets: {', '.join(PRESETS)}. The defaults below are those "
            f"of '{preset}'."
        ),
        default=discovery_preset(preset),
        args=args,
    )
    return 130 if discover(config).interrupted else 0


@dataclass(frozen=True)
class ResumeDiscoveryArgs:
    """Go on with the discovery of a rule."""

    resume: Path
    """Folder of the run."""
    steps: int | None = None
    """Meta-steps of the whole run; raise it to go on for longer."""
    progress: Literal["auto", "bar", "lines", "none"] = "auto"
    """How progress is shown; auto draws a bar on a terminal and prints lines elsewhere."""


def _long_name(arg: str, task: str) -> str:
    """Settings of the environment go without their prefix too: --truncation, --sticky."""
    from discorl.config import EnvConfig, TrainConfig

    name, *value = arg.split("=", 1)
    if not name.startswith("--"):
        return arg
    short = name.removeprefix("--").removeprefix("env.").removeprefix("suite.")
    plain = short.removeprefix("no-").replace("-", "_")
    if plain in {f.name for f in dataclasses.fields(EnvConfig)}:
        name = f"--env.{short}"
    elif plain not in {f.name for f in dataclasses.fields(TrainConfig)} and _is_of_suite(
        plain, task
    ):
        name = f"--env.suite.{short}"
    return "=".join([name, *value])


def _is_of_suite(option: str, task: str) -> bool:
    """Whether it is an option of the task's suite; raises if it is one of others only."""
    from discorl.envs import suites

    having = [s for s in suites.SUITES if s.settings and option in s.settings.__dataclass_fields__]
    own = suites.find(task)
    if not having or own in having:
        return bool(having)
    titles = [s.title for s in having]
    who = " and ".join(filter(None, [", ".join(titles[:-1]), titles[-1]]))
    raise DiscorlError(
        f"--{option.replace('_', '-')} is an option of {who}, but the task is '{task}': leave it "
        f"away, or see 'discorl train {task} --help'"
    )


def _value_of(option: str, args: list[str]) -> str | None:
    """The value that ``args`` give an option, which others take their defaults from."""
    for arg, after in itertools.zip_longest(args, args[1:]):
        if arg == option:
            return after
        if arg.startswith(f"{option}="):
            return arg.partition("=")[2]
    return None


def _compare(args: list[str]) -> int:
    tyro.cli(_compare_runs, prog="discorl compare", args=args)
    return 0


def _compare_runs(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    metric: Literal["auto", "return", "success"] = "auto",
    html: Path | None = Path("comparison.html"),
    json: Path | None = None,
    by_settings: bool = True,
    bootstrap: int = 10_000,
) -> None:
    """Compare runs: scores and curves of each rule on each task, with intervals over seeds.

    Args:
        runs: Run folders, or folders that hold them.
        metric: What to compare; auto takes the success rate where a task has one.
        html: The report to write, one page that opens without a network; None for no report.
        json: Write all numbers to this file.
        by_settings: Keep runs of a rule apart whose settings differ.
        bootstrap: Bootstrap samples for each interval.
    """
    from discorl.runs.compare import compare
    from discorl.runs.compare_table import print_comparison
    from discorl.runs.files import write_json, write_text
    from discorl.runs.report import html_report

    comparison = compare(runs, metric, by_settings, bootstrap)
    console = Console()
    print_comparison(comparison, console)
    if json is not None:
        write_json(json, comparison.as_dict())
        console.print(f"Numbers: {json}", highlight=False, soft_wrap=True)
    if html is not None:
        write_text(html, html_report(comparison))
        console.print(f"Report: {html}", highlight=False, soft_wrap=True)


def _evaluate(args: list[str]) -> int:
    tyro.cli(_evaluate_run, prog="discorl evaluate", args=args)
    return 0


def _evaluate_run(
    run: tyro.conf.Positional[Path],
    episodes: int = 100,
    seeds: tuple[int, ...] = (0,),
    greedy: bool = False,
    num_envs: int = 16,
    max_steps: int = 27_000,
    device: str = "auto",
    json: Path | None = None,
    video: Path | None = None,
    fps: int | None = None,
) -> None:
    """Play whole episodes with a trained agent, without learning.

    Args:
        run: Folder of a run.
        episodes: Episodes for each seed.
        seeds: Seeds of the environment and of the agent's draws.
        greedy: Always take the likeliest action, instead of drawing from the policy.
        num_envs: Copies of the environment that are played at once.
        max_steps: Steps after which an episode is cut.
        device: cpu, cuda, mps, or auto for the fastest that is there.
        json: Write every episode's return and length to this file.
        video: Film one episode, with the first seed: a .gif, or an .mp4 with the extra 'video'.
        fps: Frames a second of the video; the environment's own, or 10, if not given.
    """
    from discorl.runs.device import choose_device
    from discorl.runs.evaluate import evaluate, print_evaluation
    from discorl.runs.files import write_json
    from discorl.runs.load import load_agent
    from discorl.runs.video import check_video_path, record_episode, write_video

    if video is not None:
        check_video_path(video)
    agent = load_agent(run, choose_device(device))
    result = evaluate(agent, episodes, seeds, greedy, num_envs, max_steps)
    console = Console()
    print_evaluation(result, console)
    if json is not None:
        write_json(json, result.as_dict())
        console.print(f"Episodes: {json}", highlight=False, soft_wrap=True)
    if video is not None:
        frames, own_fps = record_episode(agent, seeds[0], greedy, max_steps)
        write_video(video, frames, own_fps if fps is None else fps)
        console.print(f"Video: {video}", highlight=False, soft_wrap=True)


def _parse(cls: type[T], **kwargs: Any) -> T:
    """``tyro.cli``, but an error of ours stays one: tyro would draw a box around it and exit."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(cls, **kwargs)
    except SystemExit as stop:
        cause: BaseException | None = stop
        while (cause := cause.__context__) is not None:
            if isinstance(cause, DiscorlError):
                raise cause from None
        sys.stderr.write(said.getvalue())
        raise


def _envs(args: list[str]) -> int:
    from discorl.envs.registry import KNOWN
    from discorl.envs.suites import SUITES

    tyro.cli(_list_envs, prog="discorl envs", args=args)
    width = max(map(len, [*KNOWN, *(suite.pattern for suite in SUITES)]))
    for name, what in KNOWN.items():
        print(f"{name:{width}}  {what}")
    for suite in SUITES:
        missing = "" if suite.installed() else f" [not installed: {suite.hint}]"
        print(f"{suite.pattern:{width}}  {suite.description}{missing}")
    return 0


def _list_envs() -> None:
    """List the tasks there are, and how to install those that are missing."""


def _rules(args: list[str]) -> int:
    result = tyro.extras.subcommand_cli_from_dict(
        {
            "list": _rules_list,
            "show": _rules_show,
            "fetch": _rules_fetch,
            "verify": _rules_verify,
            "export": _rules_export,
        },
        prog="discorl rules",
        description="Update rules: what is here, what is in them, and where they come from.",
        args=args,
    )
    return result or 0


def _rules_list() -> int:
    """List the update rules that this machine can use."""
    from discorl.rules.store import DISCO103, embedded_rules, find_disco103

    path = find_disco103()
    where = str(path) if path else "not on this machine; 'discorl rules fetch' gets it"
    rows = [(DISCO103, f"the published rule ({where})")]
    rows += [(name, f"discovered by this project ({path})") for name, path in embedded_rules()]
    rows += [
        ("actor-critic", "hand-written baseline: V-trace actor-critic"),
        ("policy-gradient", "hand-written baseline: policy gradient without a critic"),
    ]
    for name, what in rows:
        print(f"{name:16} {what}")
    return 0


def _rules_show(rule: tyro.conf.Positional[str]) -> int:
    """Show sizes, settings and provenance of a rule.

    Args:
        rule: Name of a rule, or path of a rule file.
    """
    from discorl.rules.store import load_rule, sha256

    loaded = load_rule(rule)
    print(f"{loaded.name}: {loaded.path}")
    print(f"  sha256      {sha256(loaded.path)}")
    print(f"  parameters  {loaded.num_params:,} in {len(loaded.params)} arrays")
    for title in ("sizes", "value_head", "returns", "weights"):
        fields = dataclasses.asdict(getattr(loaded.rule, title))
        print(f"  {title:11} {', '.join(f'{k}={v}' for k, v in fields.items())}")
    for key, value in loaded.provenance.items():
        print(f"  {key:11} {value}")
    return 0


def _rules_fetch() -> int:
    """Download Disco103 into the user's cache and check it; does nothing if it is there already."""
    from discorl.rules.store import fetch_disco103, find_disco103

    path = find_disco103()
    print(f"already here: {path}" if path else f"saved: {fetch_disco103()}")
    return 0


def _rules_verify(rule: tyro.conf.Positional[str] = "disco103") -> int:
    """Check that a rule file is whole and sound; for disco103 also that it is the published one.

    Args:
        rule: Name of a rule, or path of a rule file.
    """
    from discorl.rules.store import load_rule

    loaded = load_rule(rule)
    print(f"ok: {loaded.path} ({len(loaded.params)} arrays, {loaded.num_params:,} parameters)")
    return 0


def _rules_export(rule: tyro.conf.Positional[str], file: tyro.conf.Positional[Path]) -> int:
    """Write a rule as a file under the reference's array names.

    Args:
        rule: Name of a rule, or path of a rule file.
        file: The .npz file to write.
    """
    from discorl.rules.store import load_rule, save_rule

    if file.suffix != ".npz":
        raise DiscorlError(f"a rule file is called something.npz, not {file.name}")
    loaded = load_rule(rule)
    save_rule(file, loaded.rule, loaded.params, loaded.provenance)
    Console().print(f"saved: {file}", highlight=False)
    return 0
