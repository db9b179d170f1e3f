"""Numbers on the command line."""

from __future__ import annotations

from shlex import split

import pytest

from discorl.cli import main
from discorl.cli.train import parse_train
from discorl.cli.values import whole_number
from discorl.errors import DiscorlError


@pytest.mark.parametrize(
    "text, number",
    [("17", 17), ("-3", -3), ("200_000", 200_000), ("1e6", 10**6), ("1.5e3", 1500), ("2.0", 2)],
)
def test_whole_numbers_in_all_spellings(text: str, number: int) -> None:
    found = whole_number(text)
    assert found == number and type(found) is int


@pytest.mark.parametrize("text", ["1.5", "1e-3", "inf", "nan", "many", ""])
def test_what_is_no_whole_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        whole_number(text)


def test_every_option_takes_them() -> None:
    """Numbers alone, in lists, and those that may be missing."""
    args = "catch --rule actor-critic --steps 1e3 --log-every 1_0 --net.torso 6.4e1 32"
    config = parse_train([*split(args), "--checkpoint.every-steps", "1e2", "--threads", "1e0"])
    assert (config.steps, config.log_every, config.net.torso) == (1000, 10, (64, 32))
    assert (config.checkpoint.every_steps, config.threads) == (100, 1)


def test_a_fraction_is_refused_by_name() -> None:
    with pytest.raises(DiscorlError, match=r"^--steps: '1\.5' is not a whole number$"):
        parse_train(split("catch --rule actor-critic --steps 1.5"))


def test_a_budget_in_environment_steps() -> None:
    args = split("catch --rule actor-critic --num-envs 4 --rollout-length 25")
    assert parse_train([*args, "--env-steps", "1e4"]).steps == 100
    assert parse_train([*args, "--env-steps", "10_001"]).steps == 101
    assert parse_train([*args, "--steps", "7"]).steps == 7


def test_two_budgets_are_one_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(split("train catch --steps 10 --env-steps 1e4")) == 2
    assert "give one of them" in capsys.readouterr().err


def test_a_budget_has_to_be_something() -> None:
    with pytest.raises(DiscorlError, match=r"^--env-steps must be at least 1"):
        parse_train(split("catch --rule actor-critic --env-steps 0"))
