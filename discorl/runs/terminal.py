"""Lines and cells on a rich console, of text that need not be our own."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from discorl.printable import printable

_PLAIN = str.maketrans("▁▂▃▄▅▆▇█┤│", "..:::|||||")
"""What stands for the drawings of a curve where there is only ASCII."""


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
