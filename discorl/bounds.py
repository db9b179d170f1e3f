"""Checks of numbers that settings share; ``part`` says whose they are, as in "window: "."""

from __future__ import annotations

import math

from discorl.errors import DiscorlError

MAX_COUNT = 10**12
"""Of anything that is counted over a whole run."""
MAX_AT_ONCE = 10**6
"""Of anything that takes up memory side by side."""
MAX_LAYERS, MAX_WIDTH = 100, 2**14
MAX_SETTING = 1e9
"""Of a weight, in either direction."""


def check_at_least(
    least: int, part: str, settings: object, *names: str, most: int = MAX_COUNT
) -> None:
    """Raise unless each setting is ``least`` or more, and at most ``most``."""
    for name in names:
        check_between(least, most, f"{part}{name}", getattr(settings, name))


def check_between(least: int, most: int, name: str, value: float) -> None:
    """Raise unless a number lies between these two, naming the one that it is beyond."""
    if not least <= value <= most:
        too_large = value > most
        said = (
            f"at most {most}" if too_large else "0 or more" if least == 0 else f"at least {least}"
        )
        raise DiscorlError(f"{name} must be {said}, not {shown(value)}")


def check_widths(part: str, settings: object, *names: str) -> None:
    """Raise unless each setting is a list of layers of possible widths; it may be empty."""
    for name in names:
        widths = getattr(settings, name)
        check_between(0, MAX_LAYERS, f"{part}the number of layers in {name}", len(widths))
        for width in widths:
            check_between(1, MAX_WIDTH, f"{part}a width in {name}", width)


def check_weights(part: str, settings: object, *names: str) -> None:
    """Raise unless each setting can be the weight of a loss."""
    for name in names:
        if not 0 <= (value := getattr(settings, name)) <= MAX_SETTING:
            raise DiscorlError(
                f"{part}{name} must be between 0 and {MAX_SETTING:g}, not {shown(value)}"
            )


def check_numbers(part: str, settings: object, *names: str) -> None:
    """Raise unless each setting is a number, of either sign, that can be reckoned with."""
    for name in names:
        if not abs(value := getattr(settings, name)) <= MAX_SETTING:
            raise DiscorlError(
                f"{part}{name} must be between {-MAX_SETTING:g} and {MAX_SETTING:g}, not "
                f"{shown(value)}"
            )


def shown(value: float) -> str:
    """A number for a message, which a number of 400 digits would fill."""
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}... ({len(text)} digits)"


def check_above_0(part: str, settings: object, *names: str) -> None:
    """Raise unless each setting is a finite number above 0."""
    for name in names:
        if not 0 < (value := getattr(settings, name)) < math.inf:
            raise DiscorlError(f"{part}{name} must be a number above 0, not {shown(value)}")


def check_shares(part: str, settings: object, *names: str) -> None:
    """Raise unless each setting lies between 0 and 1."""
    for name in names:
        if not 0 <= (value := getattr(settings, name)) <= 1:
            raise DiscorlError(f"{part}{name} must be between 0 and 1, not {shown(value)}")
