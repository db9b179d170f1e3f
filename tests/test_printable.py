"""What a terminal is shown of text from files."""

from __future__ import annotations

import pytest

from discorl.printable import printable


@pytest.mark.parametrize(
    "text, shown",
    [
        ("a line [bold] \\ ü 漢 ▁", "a line [bold] \\ ü 漢 ▁"),
        ("\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
        ("a\nsha256 forged\r", "a\\nsha256 forged\\r"),
        ("\x7f\x85\x9b", "\\x7f\\x85\\x9b"),
        ("\u202egnp\u2066\u200f\u2028", "\\u202egnp\\u2066\\u200f\\u2028"),
        ("\ud800\udcff", "\\ud800\\udcff"),
    ],
)
def test_what_does_not_show_as_itself_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(text).encode()
