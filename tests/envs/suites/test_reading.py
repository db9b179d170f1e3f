from __future__ import annotations

from dataclasses import dataclass

import pytest

from discorl.envs.suites.reading import at_least, read
from discorl.errors import DiscorlError


@dataclass(frozen=True)
class Some:
    count: int = 3
    share: float = 0.5
    loud: bool = False
    word: str = "hard"


def test_defaults_and_values() -> None:
    assert read(Some, {}, "X") == Some()
    given = {"count": 4, "share": 1, "loud": True, "word": "easy"}
    assert read(Some, given, "X") == Some(4, 1.0, True, "easy")


def test_text_is_read_as_the_type_of_the_default() -> None:
    given = {"count": "4", "share": "0.25", "loud": "true", "word": "0"}
    assert read(Some, given, "X") == Some(4, 0.25, True, "0")
    assert read(Some, {"loud": "False"}, "X").loud is False


@pytest.mark.parametrize(
    "given", [{"count": "many"}, {"count": 1.5}, {"count": True}, {"loud": "maybe"}, {"loud": 1},
              {"share": None}, {"word": 3}]
)  # fmt: skip
def test_a_value_of_another_type(given: dict[str, object]) -> None:
    with pytest.raises(DiscorlError, match=f"X's option '{next(iter(given))}' is"):
        read(Some, given, "X")


def test_an_unknown_option() -> None:
    with pytest.raises(DiscorlError, match="X has no option 'size': use count, share, loud, word"):
        read(Some, {"size": 1}, "X")


def test_at_least() -> None:
    at_least(1, stack=1)
    with pytest.raises(DiscorlError, match="stack must be at least 1, not 0"):
        at_least(1, stack=0)
