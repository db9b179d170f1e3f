"""``discorl rules``."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import tyro

from discorl.cli.first_use import ask_before_download
from discorl.cli.help import ALL, help_text
from discorl.cli.options import groups_of
from discorl.cli.parse import call_one_of
from discorl.errors import DiscorlError
from discorl.printable import printable


def rules_command(args: list[str]) -> int:
    """One of the commands for rule files; returns the exit code."""
    known = {"list": _list, "show": _show, "fetch": _fetch, "verify": _verify, "export": _export}
    known |= {"publish": _publish, "pull": _pull}
    about = "Update rules: which ones you have, what is in them, and where they come from."
    return call_one_of(known, "rules", about, args)


def _list() -> None:
    """List the update rules that this machine can use."""
    from discorl.rules.built_in import BUILT_IN
    from discorl.rules.store import DISCO103, embedded_rules, find_disco103

    try:
        path = find_disco103()
        where = str(path) if path else "not on this machine; get it with 'discorl rules fetch'"
    except DiscorlError as e:
        where = f"not usable: {e}"
    rows = [(DISCO103, f"the published rule ({where})")]
    rows += [(name, f"discovered by this project ({path})") for name, path in embedded_rules()]
    rows += [(name, built_in.description) for name, built_in in BUILT_IN.items()]
    for name, what in rows:
        print(printable(f"{name:16} {what}"))


def _show(rule: tyro.conf.Positional[str]) -> None:
    """Show a rule's sizes, settings and provenance.

    Args:
        rule: Name of a rule, or path to a rule file.
    """
    from discorl.rules.built_in import BUILT_IN
    from discorl.rules.store import file_settings, load_rule, sha256

    if rule in BUILT_IN:
        _show_built_in(rule)
        return
    ask_before_download(rule)
    loaded = load_rule(rule)
    print(printable(f"{loaded.name}: {loaded.path}"))
    print(f"  sha256      {sha256(loaded.path)}")
    print(f"  parameters  {loaded.num_params:,} in {len(loaded.params)} arrays")
    if loaded.rule.missing:
        print(f"  without     {', '.join(loaded.rule.missing)}")
    groups = {"sizes": dataclasses.asdict(loaded.rule.sizes)} | file_settings(loaded.rule)
    for title in ("sizes", "value_head", "returns", "weights", "prior"):
        if fields := groups[title]:
            print(f"  {title:11} {', '.join(f'{k}={v}' for k, v in fields.items())}")
    for key, value in loaded.provenance.items():
        print(printable(f"  {key:11} {value}"))


def _show_built_in(name: str) -> None:
    """Show what a rule that is written in Python has: predictions, and settings as options."""
    from discorl.rules.built_in import BUILT_IN
    from discorl.training.config import TrainConfig

    built_in = BUILT_IN[name]
    heads = built_in.rule().heads(1)
    settings = name.replace("-", "_")
    shown = [g for g in groups_of(TrainConfig, TrainConfig()) if g.name in (settings, "returns")]
    print(f"{name}: {built_in.description}")
    print(f"  in Python   discorl.{built_in.rule.__name__}; it has no learnt parameters")
    print(f"  agents      predict {', '.join([*heads.flat, *heads.per_action])}\n")
    print(help_text(f"discorl train TASK --rule {name} [options]", "", shown, [ALL]))


def _fetch(timeout: float = 300.0) -> None:
    """Download Disco103 to your cache and verify it; does nothing if you already have it.

    Args:
        timeout: Give up after this many seconds.
    """
    from discorl.rules.store import fetch_disco103, find_disco103

    path = find_disco103()
    print(f"already here: {path}" if path else f"saved: {fetch_disco103(max_seconds=timeout)}")


def _verify(rule: tyro.conf.Positional[str] = "disco103") -> None:
    """Check that a rule file is complete and valid and, for disco103, is the published one.

    Args:
        rule: Name of a rule, or path to a rule file.
    """
    from discorl.rules.store import load_rule

    ask_before_download(rule)
    loaded = load_rule(rule)
    about = f"{len(loaded.params)} arrays, {loaded.num_params:,} parameters"
    print(printable(f"ok: {loaded.path} ({about})"))


def _export(rule: tyro.conf.Positional[str], file: tyro.conf.Positional[Path]) -> None:
    """Write a rule to a file, under the reference's array names.

    Args:
        rule: Name of a rule, or path to a rule file.
        file: The .npz file to write.
    """
    from discorl.rules.store import load_rule, save_rule

    if file.suffix != ".npz":
        raise DiscorlError(f"a rule file's name must end in .npz, not {file.name}")
    ask_before_download(rule)
    loaded = load_rule(rule)
    save_rule(file, loaded.rule, loaded.params, loaded.provenance)
    print(printable(f"saved: {file}"))


def _publish(
    rule: tyro.conf.Positional[str], repo: tyro.conf.Positional[str], private: bool = False
) -> None:
    """Put a rule on the Hugging Face Hub, with a card made from its provenance, scores and curve.

    Args:
        rule: Name of a rule, path to a rule file, or folder of a discovery.
        repo: Where to put it, as OWNER/NAME. It is made if it is not there.
        private: Make the repository private.
    """
    from discorl.sharing.rules import publish_rule

    print(printable(f"Published: {publish_rule(rule, repo, private)}"))


def _pull(
    repo: tyro.conf.Positional[str], out: Path | None = None, revision: str | None = None
) -> None:
    """Fetch a rule from the Hugging Face Hub, and check it.

    Args:
        repo: Where it is, as OWNER/NAME.
        out: The .npz file to write; by default NAME.npz in the current folder.
        revision: A branch, tag or commit; by default the newest.
    """
    from discorl.rules.store import sha256
    from discorl.sharing.rules import pull_rule

    loaded = pull_rule(repo, out, revision)
    print(printable(f"Rule: {loaded.path}"))
    print(f"  sha256      {sha256(loaded.path)}")
    for key, value in loaded.provenance.items():
        print(printable(f"  {key:11} {value}"))
