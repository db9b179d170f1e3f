"""The tasks of the trials. None of them is trained on, nor used to choose a rule or a setting."""

HELD_OUT = (
    "catch:10x6",
    "gym:CartPole-v1",
    "umbrella:10",
    "grid:random-small",
    "deep-sea:5",
    "bandit:5x4",
    "gym:Acrobot-v1",
    "mdp:20x6",
    "catch:12x9",
    "balance:4x3",
    "chain:20:noisy",
    "grid:random-sparse",
    "gym:LunarLander-v3",
)
"""Sizes, layouts and kinds of tasks that disco-mini has not trained on."""
HELD_OUT_LATER = (
    "minatar:freeway",
    "minatar:seaquest",
    "gym:FrozenLake-v1",
    "gym:CliffWalking-v1",
    "gym:Blackjack-v1",
    "grid:random-dense",
)
"""Fixed before anything was run on any of them."""
CHOSEN_ON = (
    "catch:9x7",
    "umbrella:7",
    "chain:12:noisy",
    "mdp:15x5",
    "balance",
    "deep-sea:4",
)
"""Where one setting for all tasks was chosen."""
