"""Where rules come from: the public Disco103, the rules in this package, and files of your own."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from discorl.bounded import open_regular
from discorl.bounds import MAX_SETTING
from discorl.cache import private_cache, user_cache
from discorl.errors import DiscorlError
from discorl.rules.built_in import BUILT_IN
from discorl.rules.disco import DiscoRule, DiscoSettings
from discorl.rules.download import MAX_SECONDS, download
from discorl.rules.format import MAX_FILE_BYTES, arrays_to_params, read_archive, write_archive
from discorl.rules.improvement import Improvement
from discorl.rules.values import ReturnSettings, ValueHead
from discorl.suggestions import did_you_mean
from discorl.types import Params

DISCO103 = "disco103"
DISCO103_SHA256 = "dac840a15b81e8805326363458c33979626172618f620d9e6e170315388530aa"
DISCO103_URL = (
    "https://raw.githubusercontent.com/google-deepmind/disco_rl/main/"
    "disco_rl/update_rules/weights/disco_103.npz"
)
DISCO103_ENV = "DISCORL_DISCO103"
OFFLINE_ENV = "DISCORL_OFFLINE"
FORMAT_VERSION = 1
VERSION_WITHOUT_PARTS = 2
"""Of files of rules that lack a part, which version 0.2.0 would misread."""
VERSION_WITH_PRIOR = 3
"""Of files of rules that add to a hand-written target."""
VERSIONS = (FORMAT_VERSION, VERSION_WITHOUT_PARTS, VERSION_WITH_PRIOR)


@dataclass(frozen=True)
class LoadedRule:
    """A rule with its parameters and where they came from."""

    name: str
    rule: DiscoRule
    params: Params
    path: Path
    provenance: dict[str, Any]

    @property
    def num_params(self) -> int:
        """Numbers that were meta-learnt."""
        return sum(p.numel() for p in self.params.values())

    def __repr__(self) -> str:
        return f"<Rule {self.name}: {self.num_params:,} parameters, from {self.path}>"


def load_rule(name: str | Path) -> LoadedRule:
    """A rule by name (``disco103``, or one of the package's own) or by the path of its file."""
    if name == DISCO103:
        return _read(DISCO103, find_disco103() or fetch_disco103())
    embedded = dict(embedded_rules())
    if name in embedded:
        return _read(str(name), embedded[str(name)])
    path = Path(name)
    if not path.suffix and not path.exists():
        raise _no_file(str(name))
    return _read(path.stem, path)


def rule_names() -> list[str]:
    """Every name that ``--rule`` takes, besides paths."""
    return [DISCO103, *dict(embedded_rules()), *BUILT_IN]


def _no_file(name: str) -> DiscorlError:
    """The error for a name that no rule in a file has."""
    if name in BUILT_IN:
        make = f"discorl.{BUILT_IN[name].rule.__name__}()"
        return DiscorlError(f"{name} is written in Python and has no file: in Python, use {make}")
    names = rule_names()
    known = f"use {', '.join(names)}, or the path of a .npz file"
    return DiscorlError(f"no rule is called '{name}': {known}{did_you_mean(name, names)}")


def save_rule(
    path: Path | str, rule: DiscoRule, params: Params, provenance: dict[str, Any]
) -> None:
    """Write a rule file that this package can load, and the reference if it has its sizes."""
    settings, version = file_settings(rule), VERSION_WITH_PRIOR
    if rule.prior is None:
        version = VERSION_WITHOUT_PARTS if rule.missing else FORMAT_VERSION
        del settings["prior"]  # which these versions do not have
    if version == FORMAT_VERSION:
        del settings["auxiliary"]
    write_archive(
        Path(path), params, {"discorl_rule": version, **settings, "provenance": provenance}
    )


def file_settings(rule: DiscoRule) -> dict[str, Any]:
    """The settings of a rule as its file has them: costs lose their suffix and become weights."""
    costs = dataclasses.asdict(rule.settings)
    target_rate = costs.pop("target_rate")
    return {
        "value_head": dataclasses.asdict(rule.value_head) if rule.value_head else None,
        "returns": dataclasses.asdict(rule.returns),
        "weights": {name.removesuffix("_cost"): cost for name, cost in costs.items()},
        "target_rate": target_rate,
        "mask_episode_starts": rule.mask_episode_starts,
        "auxiliary": rule.auxiliary,
        "prior": dataclasses.asdict(rule.prior) if rule.prior else None,
    }


def embedded_rules() -> Iterator[tuple[str, Path]]:
    """Rules that this project discovered and ships, by name."""
    folder = Path(str(resources.files("discorl") / "data"))
    for path in sorted(folder.glob("*.npz")):
        yield path.stem, path


def cache_path() -> Path:
    """Where a downloaded Disco103 is kept."""
    return user_cache() / "disco_103.npz"


def find_disco103() -> Path | None:
    """Disco103 on this machine: ``DISCORL_DISCO103``, then the user's cache; None if absent."""
    given = os.environ.get(DISCO103_ENV)
    path = Path(given) if given else cache_path()
    if not path.is_file():
        if given:
            raise DiscorlError(f"{DISCO103_ENV} is set to {given}, which is not a file")
        return None
    check_disco103(path)
    return path


def check_disco103(path: Path) -> None:
    """Raise unless the file is the published one, byte for byte."""
    if (found := sha256(path)) != DISCO103_SHA256:
        raise DiscorlError(
            f"{path} is not the published Disco103: its sha256 is {found}, not {DISCO103_SHA256}. "
            f"Correct or unset {DISCO103_ENV}, or remove the file if it came from 'discorl rules "
            "fetch', and run that again; to use another rule, pass its path as --rule"
        )


def fetch_disco103(
    url: str = DISCO103_URL, show_progress: bool = True, max_seconds: float = MAX_SECONDS
) -> Path:
    """Download Disco103 into the user's cache, verified, or raise after ``max_seconds``."""
    others = (
        "or use a rule that ships with discorl (--rule cmpo or --rule disco-mini; "
        'rule="disco-mini" in Python)'
    )
    if is_offline():
        raise DiscorlError(
            f"Disco103 is not on this machine, and --offline or {OFFLINE_ENV} forbids downloading "
            f"it: leave that out, {others}"
        )
    try:
        private_cache()
        download(url, cache_path(), DISCO103_SHA256, show_progress, max_seconds)
    except DiscorlError as e:
        raise DiscorlError(
            f"Disco103 is not on this machine and could not be downloaded: {e}. Put "
            f"disco_103.npz from google-deepmind/disco_rl anywhere and set {DISCO103_ENV} to its "
            f"path, copy it to {cache_path()}, {others}"
        ) from None
    return cache_path()


def is_offline() -> bool:
    """Whether the user forbade downloads, by ``--offline`` or ``DISCORL_OFFLINE``."""
    return os.environ.get(OFFLINE_ENV, "") not in ("", "0")


def sha256(path: Path) -> str:
    """Checksum of a file."""
    with open_regular(path, MAX_FILE_BYTES) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(name: str, path: Path) -> LoadedRule:
    arrays, comment = read_archive(path)
    try:
        settings = _settings(comment)
    except (TypeError, ValueError) as e:
        raise DiscorlError(f"{path}: its settings are invalid: {e}") from None
    try:
        sees_values, prior = settings.get("value_head", True) is not None, settings.get("prior")
        sizes, params = arrays_to_params(arrays, sees_values, prior is not None)
    except DiscorlError as e:
        raise DiscorlError(f"{path}: {e}") from None
    rule = DiscoRule(sizes=sizes, **settings)
    return LoadedRule(name, rule, params, path, comment.get("provenance", {}))


def _settings(comment: dict[str, Any]) -> dict[str, Any]:
    """Constructor arguments of the rule from a file's comment; none if it has no comment."""
    if not comment:
        return {}
    version = comment.get("discorl_rule")
    if version not in VERSIONS:
        raise ValueError(
            f"format version {version!r:.20}, but this package reads {FORMAT_VERSION} to "
            f"{VERSION_WITH_PRIOR}: update discorl"
        )
    if not isinstance(comment.get("provenance", {}), dict):
        raise ValueError("the provenance is not a group of notes")
    defaults = file_settings(DiscoRule(prior=Improvement()))
    given = {"prior": None} | comment
    found = _sound({k: x for k, x in given.items() if k in defaults}, defaults)
    costs = {f"{name}_cost": cost for name, cost in found["weights"].items()}
    return {
        "value_head": ValueHead(**head) if (head := found["value_head"]) else None,
        "returns": ReturnSettings(**found["returns"]),
        "settings": DiscoSettings(**costs, target_rate=found["target_rate"]),
        "mask_episode_starts": found["mask_episode_starts"],
        "auxiliary": found["auxiliary"],
        "prior": Improvement(**prior) if (prior := found["prior"]) else None,
    }


def _sound(fields: Any, defaults: dict[str, Any]) -> dict[str, Any]:
    """Settings of the kinds that the defaults have: flags, finite numbers, a number of bins."""
    if not isinstance(fields, dict):
        raise ValueError(f"{fields!r} is not a group of settings")
    sound = dict(defaults)
    for name, value in fields.items():
        if name not in defaults:
            raise ValueError(f"no setting is called {name}")
        if name in ("value_head", "prior") and value is None:
            sound[name] = None
            continue
        if isinstance(defaults[name], dict):
            sound[name] = _sound(value, defaults[name])
            continue
        if name == "num_bins":
            is_sound = value is None or type(value) is int
        elif isinstance(defaults[name], bool):
            is_sound = isinstance(value, bool)
        else:
            is_sound = type(value) in (int, float) and abs(value) < MAX_SETTING
        if not is_sound:
            raise ValueError(f"{name} is {value!r:.40}")
        sound[name] = value
    return sound
