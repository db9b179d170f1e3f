"""Help on a command, in lines as wide as the terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

from discorl.cli.options import REQUIRED, Group, Option, metavar, shown_default

SHORT, ALL = ("-h", "--help"), "--help-all"
FEW = 14
"""A command with no more options than this shows them all at once."""
COLUMN = 30
"""Where the texts begin."""
WIDEST, NARROWEST = 100, 50
HARD_SPACE = "\0"
"""A space at which no line ends."""


def asks_for_help(args: Sequence[str]) -> bool:
    """Whether the arguments ask for help rather than for work."""
    return any(arg in (*SHORT, ALL) for arg in args)


def help_text(usage: str, about: str, groups: Sequence[Group], args: Sequence[str]) -> str:
    """The help that ``args`` ask for: the options that most people need, or all of them."""
    width = terminal_width()
    options = [option for group in groups for option in group.options]
    common = [option for option in options if option.is_common]
    is_short = ALL not in args and len(options) > FEW and bool(common)
    blocks = [wrapped(f"usage: {usage}", width, hang=7), wrapped(about, width)]
    if is_short:
        blocks.append(_listing(common, width))
        blocks.append(wrapped(_where_the_rest_is(usage, options, groups), width))
    else:
        blocks += [_group(group, width) for group in groups]
    return "\n\n".join(filter(None, blocks))


def terminal_width() -> int:
    """How wide the lines of help are."""
    return min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)


def _where_the_rest_is(usage: str, options: list[Option], groups: Sequence[Group]) -> str:
    command = usage.partition(" [options]")[0]
    names = [f"--{_shown(group.name)}.*" for group in groups if group.name]
    of = f", including {', '.join(names)}" if names else ""
    return f"'{command} --help-all' explains all {len(options)} options{of}."


def _group(group: Group, width: int) -> str:
    title = f"{_shown(group.name)}: {group.text}" if group.name else "options:"
    return f"{wrapped(title, width)}\n{_listing(group.options, width)}"


def _listing(options: Sequence[Option], width: int) -> str:
    return "\n".join(_entry(option, width) for option in options)


def _entry(option: Option, width: int) -> str:
    if option.is_positional:
        name = option.field.upper()
    elif option.is_flag:
        name = ", ".join(option.names)
    else:
        name = f"{option.name} {metavar(option.hint)}"
    text = option.text
    if option.default is not REQUIRED:
        text += f" (default:{HARD_SPACE}{shown_default(option)})"
    column = min(COLUMN, width // 3)
    head = f"  {name}"
    if len(head) > column - 2:
        return f"{head}\n{wrapped(text, width, column, column)}"
    return wrapped(head.ljust(column) + text, width, 0, column, keep=column)


def wrapped(text: str, width: int, indent: int = 0, hang: int = 0, keep: int = 0) -> str:
    """The text in lines of ``width``; its first ``keep`` characters stay as they are."""
    start, rest = text[:keep], text[keep:]
    return start + textwrap.fill(
        rest,
        width - 1,
        initial_indent=" " * (indent + keep),
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    ).removeprefix(" " * keep).replace(HARD_SPACE, " ")


def _shown(group: str) -> str:
    return group.replace("_", "-")
