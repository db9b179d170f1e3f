"""Functions by name, and which of them a file may ask for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from discorl.envs.named_code import NoModule, check_makes_environments, load_function
from discorl.errors import DiscorlError

OWN = """
from functools import partial
from subprocess import run

def make(size=3):
    return size

made = partial(make, size=4)
number = 3
raise_now = 1 / ZERO
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "own_code.py"
    path.write_text(OWN.replace("ZERO", "1"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_code", raising=False)
    return path


def test_functions_and_what_is_wrong_with_a_name(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_function("own_code:make")() == 3
    assert load_function("own_code:made")() == 4
    for name, words in {
        "own_code:nothing": "the module own_code has no function 'nothing'",
        "own_code:mak": "no function 'mak'; did you mean 'make'?",
        "own_code:number": "the module own_code has no function 'number'",
        "own code:make": "write MODULE:FUNCTION",
        "own_code": "write MODULE:FUNCTION",
    }.items():
        with pytest.raises(DiscorlError, match=words):
            load_function(name)
    with pytest.raises(NoModule, match="no module 'nowhere': run this in its folder"):
        load_function("nowhere.at_all:make")
    monkeypatch.chdir(own.parent)
    with pytest.raises(NoModule, match=r"no module 'own_cod': .*; did you mean 'own_code'\?"):
        load_function("own_cod:make")
    own.write_text(OWN.replace("ZERO", "0"))
    monkeypatch.delitem(sys.modules, "own_code")
    with pytest.raises(DiscorlError, match=r"ZeroDivisionError.*own_code\.py:10, in <module>"):
        load_function("own_code:make")


@pytest.mark.parametrize(
    "name",
    ["subprocess:run", "os:system", "builtins:exec", "own_code:run", "operator:attrgetter"],
)
@pytest.mark.usefixtures("own")
def test_a_file_may_not_call_just_any_function(name: str) -> None:
    with pytest.raises(DiscorlError, match=r"does not say that it makes environments.*--task"):
        check_makes_environments(name)


@pytest.mark.parametrize(
    "name",
    [
        "own_code:make",
        "own_code:made",
        "gymnasium:make",  # is annotated
        "gymnasium.wrappers:TimeAwareObservation",
        "gymnasium.envs.classic_control:CartPoleEnv",
    ],
)
@pytest.mark.usefixtures("own")
def test_it_may_call_those_that_make_environments_and_the_users_own(name: str) -> None:
    check_makes_environments(name)
