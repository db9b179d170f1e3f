"""Scores of a random player and of a professional tester on the 57 Atari games.

Episodes begin after up to 30 idle frames and end after 30 minutes. The numbers are those that the
papers since Wang et al. (2016, "Dueling network architectures") share.
"""

from __future__ import annotations

from csv import DictReader
from pathlib import Path

from discorl.envs.suites.packages import choose

_TABLE = Path(__file__).with_name("atari_scores.csv").read_text(encoding="utf-8").splitlines()
SCORES = {row["game"]: (float(row["random"]), float(row["human"])) for row in DictReader(_TABLE)}
"""By game: of the random player, of the human."""

GAMES = tuple(SCORES)


def human_normalised(game: str, score: float) -> float:
    """``score`` on a scale where a random player has 0 and the human tester 1."""
    random, human = SCORES[choose(game, GAMES, "Atari game")]
    return (score - random) / (human - random)
