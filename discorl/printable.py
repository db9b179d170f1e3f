"""Text that comes from files or names, for a terminal or a page."""

from __future__ import annotations


def printable(text: object) -> str:
    """The text with everything escaped that would not show as itself.

    Escape sequences, line breaks, marks that change the direction of writing and broken characters
    could forge what a terminal shows; they are written as Python would, as in ``\\x1b``.
    """
    return "".join(c if c.isprintable() else _escaped(c) for c in str(text))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()
