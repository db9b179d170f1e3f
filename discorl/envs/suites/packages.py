"""Optional packages, and the names inside them, with errors that say what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec

from discorl.errors import DiscorlError


def is_installed(package: str) -> bool:
    """Whether ``package`` can be imported, without importing it."""
    return find_spec(package) is not None


def choose(name: str, known: Iterable[str], what: str) -> str:
    """The one of ``known`` that ``name`` means: case, '-' and '_' do not matter."""
    by_key: dict[str, str] = {}
    for each in known:
        by_key.setdefault(_key(each), each)
    if _key(name) in by_key:
        return by_key[_key(name)]
    close = get_close_matches(_key(name), by_key, n=1, cutoff=0.6)
    if close:
        raise DiscorlError(f"no {what} is called '{name}': did you mean {by_key[close[0]]}?")
    raise DiscorlError(f"no {what} is called '{name}': use one of {', '.join(by_key.values())}")


def _key(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()
