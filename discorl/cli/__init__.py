"""The command line: a module for each command. The only user of tyro."""

from __future__ import annotations

import io
import sys
import traceback
import warnings
from typing import Any

import tyro

from discorl import __version__
from discorl.cli.analyse import analyse_rule
from discorl.cli.current_folder import search_current_folder
from discorl.cli.discover import discover_command
from discorl.cli.envs import list_envs
from discorl.cli.kernels import kernels_command
from discorl.cli.rules import rules_command
from discorl.cli.runs import compare_runs, evaluate_run
from discorl.cli.train import train_command
from discorl.cli.values import VALUES
from discorl.errors import DiscorlError, is_out_of_memory
from discorl.printable import printable
from discorl.runs.steady_output import steady_output

_format_warning = warnings.formatwarning

USAGE = """\
discorl: train RL agents with a learned update rule.

  discorl train [TASK] [options]     train an agent; TASK is catch, catch:10x5, gym:CartPole-v1 ...
  discorl train --resume RUN         resume a run from its last checkpoint
  discorl train [TASK] --help        every setting for that task, with its default
  discorl discover [PRESET] [options]  discover a rule; PRESET is suite, notebook or paper
  discorl evaluate RUN               play episodes with a trained agent; --video FILE films one
  discorl compare RUN...             compare rules: a table and an HTML report
  discorl analyse RULE|RUN           what a rule does: figures, numbers and an HTML page
  discorl envs                       list the available tasks
  discorl kernels build              compile the CPU kernels in advance, not at the first training
  discorl rules list                 list the update rules on this machine
  discorl rules show RULE            show a rule's sizes, settings and provenance
  discorl rules fetch                download Disco103 and verify it
  discorl rules verify [RULE]        check a rule file
  discorl rules export RULE FILE     write a rule to a file that the JAX reference can also load

With any command, --debug shows the whole traceback of an error.

Examples:
  discorl train catch                            the best rule on this machine, about 3 minutes
  discorl train catch --rule actor-critic        the same with the baseline
  discorl train ale:Breakout --preset paper      the published settings instead of small ones
  discorl train ale:Pong --sticky 0              an option of its suite; --help explains them all
  discorl train gym:CartPole-v1 --seed 1 --optimiser.learning-rate 1e-3
  discorl train --resume runs/catch-1            resume where it stopped, bit for bit
  torchrun --nproc-per-node 2 -m discorl train   two processes share the environments and the batch
"""
COMMANDS = {
    "train": train_command,
    "discover": discover_command,
    "kernels": kernels_command,
    "rules": rules_command,
}
"""Commands that parse their arguments themselves."""
FUNCTIONS = {
    "analyse": analyse_rule,
    "compare": compare_runs,
    "evaluate": evaluate_run,
    "envs": list_envs,
}
"""Commands whose options are the arguments of a function."""

OUT_OF_MEMORY = (
    "there is not enough memory for this: lower the number of environments, the batch size, the "
    "replay's capacity, the length of rollouts or the widths of the network"
)


def main(argv: list[str] | None = None) -> int:
    """Run a command; errors that the user can fix are one line, without a traceback."""
    _never_fail_to_encode()
    if argv is None:
        search_current_folder(sys.argv[1:])
    with steady_output(is_last=True):
        return _main(sys.argv[1:] if argv is None else argv)


def _main(args: list[str]) -> int:
    is_debug, args = "--debug" in args, [arg for arg in args if arg != "--debug"]
    if not args or args[0] in ("-h", "--help", "help"):
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
    if command in COMMANDS:
        return COMMANDS[command](args)
    if command not in FUNCTIONS:
        raise DiscorlError(f"no command is called '{command}'; see 'discorl --help'")
    tyro.cli(FUNCTIONS[command], prog=f"discorl {command}", args=args, registry=VALUES)
    return 0


def _one_line(message: Warning | str, category: type[Warning], *where: Any) -> str:
    """Our own warnings are for the user, who has no use for the line of code."""
    if issubclass(category, UserWarning):
        return f"warning: {printable(message)}\n"
    return _format_warning(message, category, *where)
