"""``discorl agents``."""

from __future__ import annotations

from pathlib import Path

import tyro

from discorl.cli.parse import call_one_of
from discorl.printable import printable


def agents_command(args: list[str]) -> int:
    """One of the commands for shared agents; returns the exit code."""
    about = "Share trained agents through the Hugging Face Hub (extra 'hub')."
    return call_one_of({"publish": _publish, "pull": _pull}, "agents", about, args)


def _publish(
    run: tyro.conf.Positional[Path],
    repo: tyro.conf.Positional[str],
    private: bool = False,
    episodes: int = 20,
    greedy: bool = False,
) -> None:
    """Put an agent on the hub, with a card made from its settings, score and curve.

    Args:
        run: Folder of a run, or one of its files: best.npz, agent.npz or a checkpoint.
        repo: Where to put it, as OWNER/NAME. It is made if it is not there.
        private: Make the repository private.
        episodes: How many episodes to play for the score on the card; 0 for none.
        greedy: Play the likeliest actions, instead of sampling from the policy.
    """
    from discorl.sharing.agents import publish_agent

    print(printable(f"Published: {publish_agent(run, repo, private, episodes, greedy)}"))


def _pull(
    repo: tyro.conf.Positional[str], out: Path | None = None, revision: str | None = None
) -> None:
    """Fetch an agent from the hub into a folder that evaluate, export and load_agent take.

    Nothing in it is run or unpickled. Its sizes are checked before it is downloaded, and its
    contents before the folder appears.

    Args:
        repo: Where it is, as OWNER/NAME.
        out: The folder to make; by default runs/NAME.
        revision: A branch, tag or commit; by default the newest.
    """
    from discorl.runs.files import MAX_PARAMS_BYTES
    from discorl.sharing.agents import pull_agent
    from discorl.sharing.hub import sha256_of

    folder, note = pull_agent(repo, out, revision)
    print(printable(f"Agent: {folder}"))
    for path in sorted(folder.glob("*.npz")):
        print(printable(f"  {path.name:10} sha256 {sha256_of(path, MAX_PARAMS_BYTES)}"))
    if note:
        print(printable(note))
