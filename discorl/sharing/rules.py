"""Sharing update rules."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path
from typing import Any

from discorl.errors import DiscorlError
from discorl.rules.format import MAX_FILE_BYTES
from discorl.rules.store import LoadedRule, load_rule, sha256
from discorl.runs.files import write_text
from discorl.runs.metrics import read_rows
from discorl.sharing import hub
from discorl.sharing.card import ABOUT, CURVE, write_card

FILE = "rule.npz"
TAGS = ["reinforcement-learning", "meta-learning", "update-rule", "discorl"]


def publish_rule(rule: str | Path, repo: str, private: bool = False) -> str:
    """Put a rule on the hub as ``repo``, with a card; returns its page.

    ``rule`` is a name, a rule file, or the folder of a discovery, whose curve and scores then come
    along.
    """
    path = Path(rule)
    if path.is_dir():
        best = path / "best.npz"
        path = best if best.exists() else path / FILE
    loaded = load_rule(path if Path(rule).is_dir() else rule)
    run = loaded.path.parent
    is_of_run = (run / "config.json").exists()
    with tempfile.TemporaryDirectory() as folder:
        files = {FILE: loaded.path, "README.md": Path(folder) / "README.md"}
        if is_of_run and (run / CURVE).exists():
            files[CURVE] = run / CURVE
        scores = _scores(run) if is_of_run else {}
        write_text(files["README.md"], rule_card(loaded, repo, scores, CURVE in files))
        return hub.upload(repo, files, f"The update rule {loaded.name}", private)


def rule_card(loaded: LoadedRule, repo: str, scores: dict[str, float], has_curve: bool) -> str:
    """What the hub shows of a rule."""
    name = repo.rpartition("/")[2]
    text = (
        f"An update rule for {ABOUT}.\n\n"
        f"    pip install 'discorl[hub]'\n    discorl rules pull {repo}\n"
        f"    discorl train catch --rule {name}.npz\n\n"
        "The file holds numbers and text, no code."
    )
    about: dict[str, Any] = {
        "file": FILE,
        "sha256": sha256(loaded.path),
        "parameters": loaded.num_params,
        "without": ", ".join(loaded.rule.missing),
    } | dataclasses.asdict(loaded.rule.sizes)
    tables = {
        "What it is": {key: value for key, value in about.items() if value != ""},
        "Where it comes from": loaded.provenance,
        "Scores on held-out tasks": scores,
    }
    return write_card(name, text, tables, has_curve, tags=TAGS)


def pull_rule(repo: str, out: Path | str | None = None, revision: str | None = None) -> LoadedRule:
    """Fetch a rule from the hub into the file ``out``, by default NAME.npz; checked before that."""
    path = Path(out or f"{repo.rpartition('/')[2]}.npz")
    if path.suffix != ".npz":
        raise DiscorlError(f"a rule file's name must end in .npz, not {path.name}")
    if path.exists():
        raise DiscorlError(f"{path} is already there: choose another --out, or remove it")
    with tempfile.TemporaryDirectory(dir=_folder_of(path), prefix=".pull-") as folder:
        files, _ = hub.download(repo, {FILE: hub.Limit(MAX_FILE_BYTES)}, Path(folder), revision)
        load_rule(files[FILE])
        shutil.move(files[FILE], path)
    return load_rule(path)


def _folder_of(path: Path) -> Path:
    folder = path.absolute().parent
    if not folder.is_dir():
        raise DiscorlError(f"cannot write {path.name}: there is no folder {folder}")
    return folder


def _scores(run: Path) -> dict[str, float]:
    """The last scores on held-out tasks that a discovery logged."""
    found: dict[str, float] = {}
    if (run / "metrics.jsonl").exists():
        for row in read_rows(run / "metrics.jsonl"):
            found |= {k: v for k, v in row.items() if k.startswith("held_out/") and v is not None}
    return found
