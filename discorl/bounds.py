"""Checks of numbers that settings share; ``part`` says whose they are, as in "window: "."""

from __future__ import annotations

import math

from discorl.errors import DiscorlError


def check_at_least(least: int, part: str, settings: object, *names: str) -> None:
    """Raise unless each setting is ``least`` or more, and finite."""
    for name in names:
        if not least <= (value := getattr(settings, name)) < math.inf:
            said = "0 or more" if least == 0 else f"at least {least}"
            raise DiscorlError(f"{part}{name} must be {said}, not {value}")


def check_above_0(part: str, settings: object, *names: str) -> None:
    """Raise unless each setting is a finite number above 0."""
    for name in names:
        if not 0 < (value := getattr(settings, name)) < math.inf:
            raise DiscorlError(f"{part}{name} must be a number above 0, not {value}")


def check_shares(part: str, settings: object, *names: str) -> None:
    """Raise unless each setting lies between 0 and 1."""
    for name in names:
        if not 0 <= (value := getattr(settings, name)) <= 1:
            raise DiscorlError(f"{part}{name} must be between 0 and 1, not {value}")
