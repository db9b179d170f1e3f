"""Lines and cells on a rich console, of text that need not be our own."""

from __future__ import annotations

import io
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from discorl.printable import printable

_HTML = "<pre style='font-family:monospace;line-height:1.2'>{code}</pre>"
_PLAIN = str.maketrans("▁▂▃▄▅▆▇█┤│", "..:::|||||")
"""What stands for the drawings of a curve where there is only ASCII."""


def as_html(draw: Callable[[Console], object], width: int = 100) -> str:
    """What ``draw`` prints to a console, for notebooks."""
    console = Console(record=True, file=io.StringIO(), width=width, force_terminal=False)
    draw(console)
    return console.export_html(inline_styles=True, code_format=_HTML)


def say(console: Console, *lines: str) -> None:
    """Print lines as they are: nothing in them is markup, and what does not show is escaped."""
    for line in lines:
        console.print(Text(_encodable(printable(line), console.encoding)))


def cell(text: str) -> Text:
    """A cell, or the title, of a table."""
    return Text(printable(text))


def _encodable(text: str, encoding: str) -> str:
    """The text in characters that the console has, or something that resembles it."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_PLAIN).encode(encoding, "backslashreplace").decode(encoding)
    return text
