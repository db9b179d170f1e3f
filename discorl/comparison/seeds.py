"""Runs that differ only in their seed, put together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from discorl.comparison.records import RunRecord

NOT_SETTINGS = {
    *("task", "rule", "seed", "out", "device", "torch", "progress", "threads", "compile"),
    *("steps", "kernels", "timeout_minutes", "eval", "stop_at_return", "max_minutes"),
    *("resume", "log", "checkpoint", "keep", "kind", "version", "discorl"),
}
"""What may differ between two seeds of the same thing: names, or the first word of one."""
MAX_DIGITS = 17
"""With so many, no two numbers look the same."""


@dataclass(frozen=True)
class Seeds:
    """Runs of one rule with one choice of settings on one task."""

    task: str
    rule: str
    label: str
    runs: list[RunRecord]


def group_runs(runs: list[RunRecord], by_settings: bool = True) -> tuple[list[Seeds], list[str]]:
    """Groups in the order of their first run, and notes on runs left out.

    Runs of a rule on a task whose settings differ are different things: they get groups of their
    own, named by what differs. A seed that appears twice is the same run again, not another sample.
    """
    by_rule: dict[tuple[str, str], list[RunRecord]] = {}
    for run in runs:
        by_rule.setdefault((run.task, run.rule), []).append(run)
    groups, notes = [], []
    for (task, rule), members in by_rule.items():
        differing = _differing_settings(members) if by_settings else {}
        by_label: dict[str, list[RunRecord]] = {}
        for run in members:
            by_label.setdefault(_label(run, differing), []).append(run)
        for label, same in by_label.items():
            kept, left_out = _one_for_each_seed(same)
            groups.append(Seeds(task, rule, label, kept))
            notes += [f"{task}, {label}: {text}" for text in left_out]
    return groups, notes


def _one_for_each_seed(runs: list[RunRecord]) -> tuple[list[RunRecord], list[str]]:
    kept: dict[int, RunRecord] = {}
    notes = []
    for run in runs:
        first = kept.setdefault(run.seed, run)
        if first is not run:
            notes.append(
                f"seed {run.seed} appears twice; {run.folder} is left out, {first.folder} kept"
            )
    return sorted(kept.values(), key=lambda run: run.seed), notes


def _differing_settings(runs: list[RunRecord]) -> dict[str, int]:
    """Settings that all of these runs have, with more than one value among them, and how many
    digits it takes to tell the values apart."""
    flat = [_settings(run) for run in runs]
    shared = [name for name in flat[0] if all(name in settings for settings in flat)]
    values = {name: {repr(s[name]): s[name] for s in flat}.values() for name in shared}
    return {name: _digits(different) for name, different in values.items() if len(different) > 1}


def _digits(values: Collection[Any]) -> int:
    """The fewest, from three on, with which all of the values look different."""
    enough = (n for n in range(3, MAX_DIGITS) if len({_short(v, n) for v in values}) == len(values))
    return next(enough, MAX_DIGITS)


def _settings(run: RunRecord) -> dict[str, Any]:
    settings = {}
    for name, value in _flatten(run.config):
        first = name.split(".")[0]
        if first == "resolved_rule":
            # Two files may share a name. Disco103 is the same wherever it is.
            if name == "resolved_rule.path" and run.rule != "disco103":
                settings["rule file"] = value
        elif first not in NOT_SETTINGS and first.split("_")[0] not in NOT_SETTINGS:
            settings[name] = value
    return settings


def _flatten(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and name != "kwargs":  # which are one setting together
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _label(run: RunRecord, differing: Mapping[str, int]) -> str:
    settings = _settings(run)
    parts = [
        f"{name.replace('_', '-')} {_short(settings[name], digits)}"
        for name, digits in differing.items()
    ]
    return f"{run.rule} ({', '.join(parts)})" if parts else run.rule


def _short(value: Any, digits: int) -> str:
    if isinstance(value, float) and len(str(value)) > digits + 2 and digits < MAX_DIGITS:
        return f"{value:.{digits}g}"
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)
