"""Errors in the user's code name their place in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from discorl.envs.failures import one_line


def raised(function: str, tmp_path: Path) -> BaseException:
    file = tmp_path / "their_code.py"
    file.write_text(f"import json\n\n\ndef step(x):\n    {function}\n")
    scope: dict = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    with pytest.raises((ValueError, ArithmeticError)) as caught:
        scope["step"]("{")
    return caught.value


def test_the_innermost_line_of_the_users_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = raised("json.loads(x)", tmp_path)  # which fails deep in the standard library
    assert one_line(error).endswith(f"({tmp_path / 'their_code.py'}:5, in step)")
    monkeypatch.chdir(tmp_path)
    assert one_line(error).endswith("(their_code.py:5, in step)")
    assert one_line(error).startswith("JSONDecodeError: Expecting")


def test_it_is_found_behind_another_error(tmp_path: Path) -> None:
    cause = raised("1 / 0", tmp_path)
    error = ValueError("it could\n not be made")
    error.__cause__ = cause
    assert (
        one_line(error) == f"ValueError: it could not be made ({tmp_path}/their_code.py:5, in step)"
    )


def test_no_place_if_none_is_theirs() -> None:
    scope: dict = {"json": json}
    with pytest.raises(json.JSONDecodeError) as caught:
        exec("json.loads('')", scope)
    caught.value.__traceback__ = caught.tb.tb_next  # without this file
    assert "(" not in one_line(caught.value).replace("(char 0)", "")
    assert one_line(KeyError()) == "KeyError"
