"""What someone may have meant by a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

CLOSE = 0.7
"""How alike two names are, from 0 to 1, for one to be a slip of the other."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'catch'?`` after the closest known name, or nothing if none is close."""
    by_lower = {other.lower(): other for other in known}
    close = get_close_matches(name.lower(), by_lower, n=1, cutoff=CLOSE)
    return f"; did you mean '{by_lower[close[0]]}'?" if close else ""
