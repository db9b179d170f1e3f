"""Progress: lines that fit, with the total and a time that follows the recent speed."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from discorl.runs import progress
from discorl.runs.progress import RecentSpeed, RunProgress, clock, fitted

FIELDS = {
    "return": -123.45,
    "meta_return": 0.123,
    "validation": 1.5,
    "success": 0.987,
    "loss": 1234.567,
    "steps_per_second": 123.4,
}


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Clock:
    hand = Clock()
    monkeypatch.setattr(progress.time, "monotonic", hand)
    return hand


@pytest.mark.parametrize("width", [60, 80, 160])
@pytest.mark.parametrize("style", ["bar", "lines"])
def test_lines_fit_the_terminal_with_total_and_eta(style: str, width: int) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=style == "bar", legacy_windows=False)
    with RunProgress(100_000, style, "catch rate", console) as shown:
        shown.update(99_000, FIELDS)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    assert ("step 0/100000" in text) == (style == "bar"), "a bar counts from the beginning"
    lines = [line.rstrip() for line in re.split(r"[\r\n]", text) if "99000" in line]
    assert lines
    for line in lines:
        assert "step 99000/100000" in line and re.search(r"eta \d+:\d\d$", line), line
        assert "return -123.45" in line, "the most important one always has room"
        assert len(line) <= width
    assert ("steps/s" in lines[-1]) == (width == 160)


def test_the_remaining_time_follows_the_recent_speed(hand: Clock) -> None:
    speed = RecentSpeed(0)
    for step in range(1, 101):  # a slow start: 10 seconds a step
        hand.now += 10.0
        speed.add(step)
    assert speed.seconds_for(10) == pytest.approx(100.0)
    for step in range(101, 401):  # then one step a second, for five minutes
        hand.now += 1.0
        speed.add(step)
    assert speed.seconds_for(600) == pytest.approx(600.0, rel=0.02), "the mean would say 1950"


def test_lines_say_the_remaining_time_by_the_recent_speed(hand: Clock) -> None:
    out = io.StringIO()
    with RunProgress(1000, "lines", "", Console(file=out, width=80), first=400) as shown:
        for step in range(401, 501):
            hand.now += 10.0
            shown.update(step, {})
        for step in range(501, 901):
            hand.now += 1.0
            shown.update(step, {})
    assert out.getvalue().splitlines()[-1] == "step 900/1000  eta 1:40"


def test_slow_steps_are_seen_for_more_than_a_minute(hand: Clock) -> None:
    speed = RecentSpeed(0)
    for step, seconds in enumerate([200.0, 100.0, 100.0, 100.0, 100.0, 100.0], 1):
        hand.now += seconds
        speed.add(step)
    assert speed.seconds_for(3) == pytest.approx(300.0)


def test_fields_that_do_not_fit_are_left_out() -> None:
    assert fitted("step 1/2", ["a 1", "b 2"], "eta 0:01", 80) == "step 1/2  a 1  b 2  eta 0:01"
    assert fitted("step 1/2", ["a 1", "b 2"], "eta 0:01", 23) == "step 1/2  a 1  eta 0:01"
    assert fitted("step 1/2", ["a 1", "b 2"], "eta 0:01", 5) == "step 1/2  eta 0:01"


@pytest.mark.parametrize(
    "seconds, shown", [(0, "0:00"), (59.6, "1:00"), (123, "2:03"), (3723, "1:02:03")]
)
def test_durations(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown
