"""Disco103 on first use: offered once, where someone can answer."""

from __future__ import annotations

import os
import sys

from discorl.atomic import write_atomically
from discorl.cache import private_cache
from discorl.errors import DiscorlError

DECLINED = "disco103-declined"
"""The file in the user's cache that remembers the answer."""


def offer_disco103() -> None:
    """Ask whether to download Disco103, if it is not here and nobody was asked before.

    Never without a terminal, under torchrun, or with ``--offline``. Training goes on without it,
    with the rule that is named here.
    """
    from discorl.rules.store import fetch_disco103, find_disco103, is_offline
    from discorl.training.rule_choice import best_at_hand

    if is_offline() or not _someone_is_there() or find_disco103():
        return
    try:
        answered = private_cache() / DECLINED
        if answered.exists():
            return
        if not _agrees(best_at_hand()[0]):
            write_atomically(answered, b"'discorl rules fetch' downloads it all the same.\n")
            return
        fetch_disco103()
    except (DiscorlError, OSError) as e:
        print(f"warning: {e}", file=sys.stderr)


def _someone_is_there() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and "RANK" not in os.environ


def _agrees(fallback: str) -> bool:
    """What the user answers; whoever has no answer declines."""
    print("Disco103, the published rule, is not on this machine.")
    print(f"Without it, this run uses {fallback}, which is written by hand.")
    print("Download Disco103 now (3 MB, from GitHub)? [Y/n] ", end="", flush=True)
    try:
        answer = input()  # which would show a question of its own on standard error
    except EOFError:
        return False
    return answer.strip().lower() in ("", "y", "yes")
