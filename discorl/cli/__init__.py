"""The command line: a module for each command. The only user of tyro."""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from discorl import __version__
from discorl.cli.current_folder import search_current_folder
from discorl.cli.help import asks_for_help
from discorl.errors import DiscorlError, is_out_of_memory
from discorl.printable import printable
from discorl.runs.steady_output import steady_output
from discorl.suggestions import did_you_mean

_format_warning = warnings.formatwarning

USAGE = """\
discorl: train RL agents with a learned update rule.

  discorl train [TASK] [options]   train an agent; TASK is catch, gym:CartPole-v1 ...
  discorl train --resume RUN       resume a run from its last checkpoint
  discorl train [TASK] --help      the main settings; --help-all explains them all
  discorl sweep TASK...            train over rules and seeds, several at a time
  discorl tune TASK                search for settings that suit a task and a rule
  discorl discover [PRESET]        discover a rule: suite, notebook or paper
  discorl evaluate RUN             play episodes with a trained agent, or film one
  discorl export RUN               write an agent to a file that acts without discorl
  discorl compare RUN...           compare rules: a table and an HTML report
  discorl analyse RULE|RUN         what a rule does: figures, numbers, an HTML page
  discorl envs                     list the available tasks
  discorl kernels build            compile the CPU kernels now rather than on first use
  discorl rules list               list the update rules on this machine
  discorl rules show RULE          show a rule's sizes, settings and provenance
  discorl rules fetch              download Disco103 and verify it
  discorl rules verify [RULE]      check a rule file
  discorl rules export RULE FILE   write a rule to a file that the JAX reference
                                   can also load
  discorl rules publish RULE REPO  share a rule on the Hugging Face Hub; pull gets it
  discorl agents publish RUN REPO  share an agent there; agents pull REPO gets it

Every command has --help. With --offline, none of them downloads anything.
With --debug, they show the whole traceback of an error.

Examples:
  discorl train catch
      the best rule on this machine, about 3 minutes
  discorl train catch --rule actor-critic
      the same with the baseline
  discorl train ale:Breakout --preset paper
      the published settings instead of small ones
  discorl train ale:Pong --sticky 0
      an option of its suite; --help-all explains them all
  discorl train gym:CartPole-v1 --seed 1 --optimiser.learning-rate 1e-3
  discorl train --resume runs/catch-1
      resume where it stopped, bit for bit
  torchrun --nproc-per-node 2 -m discorl train
      two processes share the environments and the batch
"""
COMMANDS = {
    "train": "train.train_command",
    "sweep": "many.sweep_command",
    "tune": "many.tune_command",
    "discover": "discover.discover_command",
    "kernels": "kernels.kernels_command",
    "rules": "rules.rules_command",
    "agents": "agents.agents_command",
}
"""Commands that parse their arguments themselves, by where they are below this package."""
FUNCTIONS = {
    "analyse": "analyse.analyse_rule",
    "compare": "runs.compare_runs",
    "evaluate": "runs.evaluate_run",
    "export": "runs.export_run",
    "envs": "envs.list_envs",
}
"""Commands whose options are the arguments of a function."""
WORK = ("train", "sweep", "tune", "discover", "analyse")
"""Commands that go on when nobody reads what they print any more."""

OUT_OF_MEMORY = (
    "there is not enough memory for this: lower the number of environments, the batch size, the "
    "replay's capacity, the length of rollouts or the widths of the network"
)


def main(argv: list[str] | None = None) -> int:
    """Run a command; errors that the user can fix are one line, without a traceback."""
    _never_fail_to_encode()
    args = sys.argv[1:] if argv is None else argv
    if argv is None:
        search_current_folder(args)
    only_prints = args[:1] == [] or args[0] not in WORK or asks_for_help(args)
    with steady_output(is_last=True, only_prints=only_prints):
        return _main(args)


def _main(args: list[str]) -> int:
    is_debug, args = "--debug" in args, [arg for arg in args if arg != "--debug"]
    if not args or args[0] in ("-h", "--help", "--help-all", "help"):
        print(USAGE)
        return 0 if args else 2
    if args[0] in ("-V", "--version", "version"):
        print(f"discorl {__version__}")
        return 0
    warnings.formatwarning = _one_line
    try:
        return _run(args[0], args[1:])
    except (DiscorlError, OSError, MemoryError, RuntimeError) as e:
        if (said := _explained(e)) is None:
            raise
        if is_debug:
            _print_traceback(e)
        print(f"error: {printable(said)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


def _explained(error: Exception) -> object:
    """What to tell the user, who can do something about it; None if it is a bug."""
    if isinstance(error, DiscorlError):
        return error
    if isinstance(error, OSError):
        return f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")
    return OUT_OF_MEMORY if is_out_of_memory(error) else None


def _print_traceback(error: BaseException) -> None:
    """The whole traceback, in which nothing can command the terminal."""
    for part in traceback.format_exception(error):
        for line in part.splitlines():
            print(printable(line), file=sys.stderr)


def _never_fail_to_encode() -> None:
    """A terminal that lacks a character gets its number: that is no reason to end a run."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run(command: str, args: list[str]) -> int:
    if "--offline" in args:
        args = [arg for arg in args if arg != "--offline"]
        os.environ["DISCORL_OFFLINE"] = "1"  # for processes that this one starts, too
    known = COMMANDS | FUNCTIONS
    if command not in known:
        seek = did_you_mean(command, known) or "; see 'discorl --help'"
        raise DiscorlError(f"no command is called '{command}'{seek}")
    with _leaving_at_once():
        if not asks_for_help(args):
            import_module("torch")
        module, _, name = known[command].rpartition(".")
        function = getattr(import_module(f"discorl.cli.{module}"), name)
        call = import_module("discorl.cli.parse").call
    if command in COMMANDS:
        return function(args)
    call(function, f"discorl {command}", args)
    return 0


@contextmanager
def _leaving_at_once() -> Iterator[None]:
    """While modules are imported, Ctrl-C ends the process: there is nothing to keep yet.

    An exception would pass through modules that are half imported, and some turn it into another.
    """

    def leave(*_: object) -> None:
        os.write(2, b"stopped\n")
        os._exit(130)

    try:
        before = signal.signal(signal.SIGINT, leave)
    except ValueError:  # not the main thread, which gets the signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _one_line(message: Warning | str, category: type[Warning], *where: Any) -> str:
    """Our own warnings are for the user, who has no use for the line of code."""
    if issubclass(category, UserWarning):
        return f"warning: {printable(message)}\n"
    return _format_warning(message, category, *where)
