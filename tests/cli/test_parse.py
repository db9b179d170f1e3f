"""Arguments: where the task may stand, and what an error calls an option."""

from __future__ import annotations

import pytest

from discorl.cli.options import options_of
from discorl.cli.parse import as_typed, split_places
from discorl.cli.train import parse_train
from discorl.errors import DiscorlError
from discorl.training.config import TrainConfig

RULE = ["--rule", "policy-gradient"]


@pytest.mark.parametrize(
    "args",
    [
        ["gym:CartPole-v1", "--steps", "5"],
        ["--steps", "5", "gym:CartPole-v1"],
        ["--steps=5", "gym:CartPole-v1"],
        ["--compile", "gym:CartPole-v1", "--steps", "5"],
        ["--steps", "5", "--no-compile", "gym:CartPole-v1"],
        ["--net.torso", "8", "9", "gym:CartPole-v1", "--steps", "5"],
        ["--normalize-observations", "gym:CartPole-v1", "--steps", "5"],
        ["--action-bins", "4", "gym:CartPole-v1", "--steps", "5"],
        ["--task", "gym:CartPole-v1", "--steps", "5"],
        ["--steps", "5", "--task=gym:CartPole-v1"],
    ],
)
def test_options_stand_before_or_after_the_task(args: list[str]) -> None:
    config = parse_train([*args, *RULE])
    assert (config.task, config.steps) == ("gym:CartPole-v1", 5)
    assert config.compile == ("--compile" in args)
    assert config.net.torso == ((8, 9) if "--net.torso" in args else (128, 128))
    assert config.env.normalize_observations == ("--normalize-observations" in args)


def test_options_of_a_suite_stand_before_the_task() -> None:
    config = parse_train(["--sticky", "0", "--preset", "small", "ale:Pong", *RULE])
    assert config.task == "ale:Pong"
    assert getattr(config.env.suite, "sticky") == 0  # noqa: B009 - of one of several classes


def test_a_task_named_twice_is_refused() -> None:
    with pytest.raises(DiscorlError, match="one task at a time"):
        parse_train(["catch", "--task", "cartpole", *RULE])


def test_words_after_an_option_that_takes_them_are_its_own() -> None:
    from discorl.discovery.config import DiscoverConfig

    args = ["--held-out", "catch", "cartpole", "--steps", "3", "suite"]
    places, rest = split_places(args, options_of(DiscoverConfig))
    assert (places, rest) == (["suite"], args[:-1])


@pytest.mark.parametrize(
    "message, shown",
    [
        ("rollout_length must be at least 2", "--rollout-length must be at least 2"),
        ("steps must be at least 1, not 0", "--steps must be at least 1, not 0"),
        ("optimiser: learning_rate must be", "--optimiser.learning-rate must be"),
        ("returns: lambda_ must be", "--returns.lambda must be"),
        ("raise --steps or lower steps", "raise --steps or lower steps"),
        ("normalize_td needs a scalar value", "--actor-critic.normalize-td needs a scalar value"),
        ("device 'rollout_length' is none", "device 'rollout_length' is none"),
        ("some_name is not ours", "some_name is not ours"),
    ],
)
def test_errors_name_options_as_they_are_typed(message: str, shown: str) -> None:
    assert as_typed(message, options_of(TrainConfig, TrainConfig())) == shown
