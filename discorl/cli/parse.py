"""Arguments to dataclasses and to the arguments of functions, by tyro."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import tyro

from discorl.cli.help import asks_for_help, help_text, terminal_width, wrapped
from discorl.cli.options import Option, groups_of, options_of, typed
from discorl.cli.values import VALUES
from discorl.errors import DiscorlError
from discorl.suggestions import did_you_mean

T = TypeVar("T")

NUMBER = re.compile(r"-?[\d.][\d_.e+-]*", re.IGNORECASE)


def parse(
    cls: type[T],
    usage: str,
    about: str,
    default: T,
    args: list[str],
    hidden: Iterable[str] = (),
) -> T:
    """The settings that ``args`` give, or the help that they ask for.

    ``usage`` is the command line that this is part of, up to its options. Help leaves out what is
    ``hidden``: fields, or whole groups.
    """
    if asks_for_help(args):
        groups = groups_of(cls, default, hidden)
        print(help_text(f"{usage} [options]", about, groups, args))
        raise SystemExit(0)
    options = options_of(cls, default)
    # Without subcommands, the options of a suite are those of the suite that the default has.
    config = (tyro.conf.AvoidSubcommands,)
    args = _as_fields(args, options, usage)
    return _ask_tyro(cls, options, args, prog=usage, default=default, config=config)


def call(function: Callable[..., object], usage: str, args: list[str]) -> None:
    """Call a function with the arguments that ``args`` give, or print its help."""
    (group,) = groups_of(function) or [None]
    options = group.options if group else ()
    if asks_for_help(args):
        places = [option.field.upper() for option in options if option.is_positional]
        has_others = len(options) > len(places)
        line = " ".join([usage, *places, *(["[options]"] if has_others else [])])
        about = (function.__doc__ or "").partition("Args:")[0]
        print(help_text(line, " ".join(about.split()), [group] if group else [], args))
        return
    named = [option for option in options if not option.is_positional]
    _ask_tyro(function, named, _as_fields(args, named, usage), prog=usage)


def call_one_of(
    known: dict[str, Callable[..., object]], command: str, about: str, args: list[str]
) -> int:
    """Call the function that the first of ``args`` names; returns the exit code."""
    if args and args[0] in known:
        call(known[args[0]], f"discorl {command} {args[0]}", args[1:])
        return 0
    if args and not asks_for_help(args):
        seek = did_you_mean(args[0], known) or f": use {', '.join(known)}"
        raise DiscorlError(f"no command is called '{command} {args[0]}'{seek}")
    width = terminal_width()
    print(f"usage: discorl {command} COMMAND\n\n{wrapped(about, width)}\n")
    for name, function in known.items():
        summary = (function.__doc__ or "").splitlines()[0]
        print(wrapped(f"  {name:8}{summary}", width, hang=10, keep=10))
    return 0 if args else 2


def _ask_tyro(what: Any, options: Sequence[Option], args: list[str], **how: Any) -> Any:
    """``tyro.cli``, but errors are ours, in one line, and name the options as they are typed."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(what, args=args, registry=VALUES, **how)
    except SystemExit as stop:
        cause: BaseException | None = stop
        while (cause := cause.__context__) is not None:
            if isinstance(cause, DiscorlError):
                raise DiscorlError(as_typed(str(cause), options)) from None
        raise DiscorlError(_first_paragraph(said.getvalue())) from None


def as_typed(message: str, options: Iterable[Option]) -> str:
    """An error about settings, with their names as they are typed on the command line."""
    by_field = {option.field: option.name for option in options}
    group = re.match(r"(\w+): ", message)
    prefix = f"{group[1]}." if group and any(f.startswith(f"{group[1]}.") for f in by_field) else ""
    if prefix:
        message = message[len(prefix) + 1 :]

    def option(word: re.Match[str]) -> str:
        name = word[0]
        if "_" not in name and (word.start() > 0 or not message[word.end() :].startswith(" must")):
            return name  # a word of the sentence
        homes = [f for f in (prefix + name, name) if f in by_field]
        homes += [f for f in by_field if f.rpartition(".")[2] == name and "_" in name]
        return by_field[homes[0]] if homes else name

    return re.sub(r"(?<![\w./'-])[a-z][a-z_]*\b(?![.(])", option, message)


def _first_paragraph(box: str) -> str:
    """What tyro says in the first part of the box that it draws around an error."""
    lines = [line.strip("│╭╮╰╯ ") for line in box.splitlines()[1:]]  # after its title
    is_rule = [not line.strip("─-") for line in lines]
    first = is_rule.index(False)
    return " ".join(lines[first : is_rule.index(True, first)]).removeprefix("Error parsing ")


def _as_fields(args: list[str], options: Iterable[Option], usage: str) -> list[str]:
    """The arguments with the names that tyro knows; raises if there is no such option."""
    known = {name: option for option in options for name in option.names}
    return [_as_field(arg, known, usage) if arg.startswith("--") else arg for arg in args]


def _as_field(arg: str, known: dict[str, Option], usage: str) -> str:
    name, *value = arg.split("=", 1)
    option = known.get("--" + typed(name.removeprefix("--")))
    if option is None:
        seek = did_you_mean(name, known) or f"; '{usage} --help-all' lists them"
        raise DiscorlError(f"no option is called '{name}'{seek}")
    if option.field.endswith("_"):  # which tyro keeps, unlike those inside a name
        name = f"--{option.field}"
    return "=".join([name, *value])


def split_places(args: list[str], options: Iterable[Option]) -> tuple[list[str], list[str]]:
    """The arguments that stand alone, such as a task, and the options with their values.

    An option whose values are numbers ends before the first word that is none; one that does not
    exist is taken to have one value.
    """
    known = {name: option for option in options for name in option.names}
    alone: list[str] = []
    rest: list[str] = []
    follows: Option | None = None
    for arg in args:
        if arg.startswith("--") or asks_for_help([arg]):
            name, equals, _ = arg.partition("=")
            option = known.get("--" + typed(name.removeprefix("--")), _UNKNOWN)
            has_value = equals or option.is_flag or asks_for_help([arg])
            follows = None if has_value else option
            rest.append(arg)
        elif follows is None or (follows.takes_numbers and not NUMBER.fullmatch(arg)):
            alone.append(arg)
            follows = None
        else:
            rest.append(arg)
            follows = follows if follows.takes_many else None
    return alone, rest


_UNKNOWN = Option("unknown", str, "", "")


def value_of(option: str, args: list[str]) -> str | None:
    """The value that ``args`` give for an option that sets the defaults of others."""
    for arg, after in itertools.zip_longest(args, args[1:]):
        if arg == option:
            return after
        if arg.startswith(f"{option}="):
            return arg.partition("=")[2]
    return None


def folder_to_resume(args: list[str]) -> Path | None:
    """The folder that ``--resume`` names; None if there is nothing to resume."""
    if not any(a == "--resume" or a.startswith("--resume=") for a in args):
        return None
    given = value_of("--resume", args)
    if not given or given.startswith("-"):
        raise DiscorlError("--resume needs a run folder, as in --resume runs/catch-1")
    return Path(given)


def parse_changes(cls: Any, command: str, folder: Path, config: Any, args: list[str]) -> Any:
    """The settings to resume a run with: the fields of ``cls``, by default as in ``config``.

    Fields of ``cls`` that are settings themselves may be a selection of those in ``config``; what
    ``config`` does not have is returned as it is.
    """
    _refuse_other_options(cls, config, args)
    hints: dict[str, Any] = get_type_hints(cls)
    parts = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    names = [f.name for f in dataclasses.fields(cls) if f.name != "resume"]
    now = {name: getattr(config, name) for name in names if hasattr(config, name)}
    selected = {name: _selection(part, now[name]) for name, part in parts.items()}
    parsed = parse(
        cls,
        usage=f"discorl {command} --resume {folder}",
        about="Resume a run from its last checkpoint. All other settings stay as they were.",
        default=cls(folder, **now | selected),
        args=args,
    )
    asked = {name: getattr(parsed, name) for name in names}
    return asked | {k: dataclasses.replace(now[k], **vars(asked[k])) for k in parts}


def _selection(cls: Any, settings: Any) -> Any:
    """The settings that ``cls`` has, too."""
    return cls(**{f.name: getattr(settings, f.name) for f in dataclasses.fields(cls)})


def _refuse_other_options(cls: Any, config: Any, args: list[str]) -> None:
    """Raise if ``args`` have an option of the whole ``config`` that ``cls`` lacks."""
    offered = {name: option for option in options_of(cls) for name in option.names}
    whole = {name for option in options_of(type(config), config) for name in option.names}
    for arg in args:
        name = "--" + typed(arg.partition("=")[0].removeprefix("--"))
        if arg.startswith("--") and name in whole and name not in offered:
            can = ", ".join(sorted({option.name for option in offered.values()} - {"--resume"}))
            raise DiscorlError(f"{name} cannot change when a run is resumed; what can: {can}")
