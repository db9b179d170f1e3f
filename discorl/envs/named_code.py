"""Functions that a name says to call: MODULE:FUNCTION."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import typing
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from discorl.envs.failures import is_library, one_line
from discorl.errors import DiscorlError
from discorl.suggestions import did_you_mean

NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


class NoModule(DiscorlError):  # noqa: N818 - reads as a sentence where it is caught
    """The module that a name begins with cannot be found."""

    def __init__(self, module: str) -> None:
        here = [path.stem for path in Path.cwd().glob("*.py")]
        self.meant = did_you_mean(module, here)
        """What module of the current folder it may have been."""
        super().__init__(
            f"there is no module '{module}': run this in its folder, put that folder on "
            f"PYTHONPATH, or install it{self.meant}"
        )


def import_named(module: str, who: str) -> ModuleType:
    """Import a module; ``who`` is what asks for it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as e:
        if e.name is None or not f"{module}.".startswith(f"{e.name}."):
            raise DiscorlError(f"{who} cannot be imported: {one_line(e)}") from e
        raise NoModule(e.name) from None
    except Exception as e:
        raise DiscorlError(f"{who} cannot be imported: {one_line(e)}") from e


def load_function(name: str) -> Callable[..., Any]:
    """The function, or class, that MODULE:FUNCTION names."""
    if not NAME.fullmatch(name):
        raise DiscorlError(f"'{name}' names no function: write MODULE:FUNCTION")
    module_name, _, function_name = name.partition(":")
    module = import_named(module_name, f"'{name}'")
    function = getattr(module, function_name, None)
    if not callable(function):
        others = [name for name, x in vars(module).items() if callable(x)]
        meant = did_you_mean(function_name, others)
        raise DiscorlError(f"the module {module_name} has no function '{function_name}'{meant}")
    return function


def check_makes_environments(name: str) -> None:
    """Raise unless the function is there to make environments, for names that come from a file.

    The file has arguments for it, too, so ``subprocess:run`` would run whatever its author likes.
    The user's own code is not doubted, but installed packages have functions for every purpose:
    one of those must be an environment or a wrapper, or say that it returns one.
    """
    function: Any = load_function(name)
    while isinstance(function, partial):
        function = function.func
    defined_in = sys.modules.get(getattr(function, "__module__", None) or "")
    file = getattr(defined_in, "__file__", None)
    if (file is None or is_library(file)) and not _returns_env(function):
        raise DiscorlError(
            f"the run calls '{name}', a function of an installed package that does not say that it "
            "makes environments: annotate it with '-> gymnasium.Env', or name the environment "
            "yourself (--task, or env= in Python)"
        )


def _returns_env(function: Any) -> bool:
    import gymnasium  # imported late: it loads slowly

    result = function
    if not isinstance(function, type):
        try:
            hints = typing.get_type_hints(function) if inspect.isroutine(function) else {}
        except Exception:  # names that cannot be found prove nothing
            hints = {}
        result = hints.get("return")
        result = typing.get_origin(result) or result
    return isinstance(result, type) and issubclass(result, gymnasium.Env)
