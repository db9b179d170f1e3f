"""Disco103 on first use: asked once, where someone can answer."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from discorl.atomic import write_atomically
from discorl.cache import private_cache
from discorl.errors import DiscorlError

DECLINED = "disco103-declined"
"""The file in the user's cache that remembers the answer."""


def ask_before_download(rule: str) -> None:
    """Ask whether to download Disco103, if ``rule`` needs it and nobody was asked before.

    Never without a terminal, under torchrun, or with ``--offline``. If the user declines, 'auto'
    goes on with the rule that is named here; whoever wants Disco103 itself gets an error.
    """
    from discorl.rules.store import DISCO103, fetch_disco103, find_disco103, is_offline
    from discorl.training.rule_choice import best_at_hand

    if rule not in ("auto", DISCO103) or is_offline() or not _someone_is_there():
        return
    if find_disco103():
        return
    at_hand = best_at_hand()[0]
    try:
        if _agrees(at_hand if rule == "auto" else None):
            fetch_disco103()
        elif rule == DISCO103:
            raise DiscorlError(
                "Disco103 is not on this machine, and you declined to download it: use "
                "'discorl rules fetch', which does not ask, or another rule, such as "
                f"{at_hand} ('discorl rules list' names them)"
            )
    except (DiscorlError, OSError) as e:
        if rule == DISCO103:
            raise
        print(f"warning: {e}", file=sys.stderr)


def ask_before_loading(run: Path) -> None:
    """The same for the rule of a run, which an agent needs to be loaded."""
    from discorl.training.agent_files import run_folder
    from discorl.training.rule_choice import read_config

    ask_before_download(read_config(run_folder(run))[0].rule)


def _someone_is_there() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and "RANK" not in os.environ


def _agrees(fallback: str | None) -> bool:
    """What the user answers, or has once answered; whoever has no answer declines."""
    declined = private_cache() / DECLINED
    if declined.exists():
        return False
    print("Disco103, the published rule, is not on this machine.")
    if fallback is not None:
        print(f"Without it, this run uses {fallback}, which is written by hand.")
    print("Download Disco103 now (3 MB, from GitHub)? [Y/n] ", end="", flush=True)
    try:
        answer = input()  # which would show a question of its own on standard error
    except EOFError:
        answer = "no"
    if answer.strip().lower() in ("", "y", "yes"):
        return True
    write_atomically(declined, b"'discorl rules fetch' downloads it all the same.\n")
    return False
