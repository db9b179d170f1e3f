"""A session as JSON, as a table that a README can hold, and as a picture."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.jobs import (
    JOBS,
    MAX_REPLAY_OVERHEAD,
    MIN_MATMUL_SHARE,
    MIN_SPEEDUP,
    OWN_PRODUCTS,
    PRODUCTS_OF,
    TimedJob,
)
from benchmarks.measure import Session, Timings, quartiles, ratio_by_round
from benchmarks.speed_plot import plot_times
from benchmarks.workers import COMPILED, OURS

QUIET = 0.05
"""A machine is quiet while others use less of it than this."""

UNKNOWN = "not measured"

TITLES = {
    "plain": "discorl, without kernels",
    "bf16": "discorl, bf16",
    "compiled": "discorl, compiled",
    "other discorl": "the other tree",
    "other compiled": "the other tree, compiled",
    "jax": "JAX reference",
    "jax-in-turn": "JAX reference, agents in turn",
    "disco-torch": "disco-torch 0.4.0",
    "disco-torch-fast": "disco-torch, our agent for it",
    "sb3": "PPO of Stable-Baselines3",
}

DISCO_TORCH_NOTE = (
    "- disco-torch 0.4.0 is its README's loop with an agent like the published one. A rollout of "
    "29 steps carries 30 observations, so its training step learns from one more than the others'. "
    "The agent that we wrote for it acts for 28 steps and learns from 29 observations, as all do."
)


def write_report(session: Session, settings: dict[str, Any], folder: Path, stem: str) -> str:
    """Write ``stem``.json, .md and .png; returns the text of the second."""
    text, summary = render(session, settings), summarise(session)
    folder.mkdir(parents=True, exist_ok=True)
    if plot_times(summary["times"], folder / f"{stem}.png"):
        text += f"\n![Times relative to discorl]({stem}.png)\n"
    content = {**settings, "results": summary, "raw": asdict(session)}
    (folder / f"{stem}.json").write_text(json.dumps(content, indent=1) + "\n")
    (folder / f"{stem}.md").write_text(text)
    return text


def summarise(session: Session) -> dict[str, Any]:
    """Medians, quartiles and ratios, by job and implementation."""
    summary: dict[str, Any] = {"times": {}, "matmul": matmul_figures(session)}
    for job, timings in session.timings.items():
        ours = timings.get(OURS.name)
        summary["times"][job] = {
            name: {
                "median_seconds": t.median,
                "quartiles_seconds": t.quartiles,
                "ratio_to_discorl": t.median / ours.median if ours else None,
                "ratio_quartiles": quartiles(ratio_by_round(t, ours)) if ours else None,
                **t.figures,
            }
            for name, t in timings.items()
        }
    summary["goals"] = [{"goal": text, "result": result} for text, result in goals(session)]
    return summary


def matmul_figures(session: Session) -> dict[str, float]:
    """How fast the machine multiplies matrices, and what the steps reach of that."""
    figures: dict[str, float] = {}
    for job in PRODUCTS_OF:
        timings = session.timings.get(job, {}).get(OURS.name)
        if timings:
            figures[f"{job}_flop"] = timings.figures["flop"]
            figures[f"{job}_flop_per_second"] = timings.figures["flop"] / timings.median
    for step, own_products in OWN_PRODUCTS.items():
        timings, flop = _fastest_of_ours(session, step), figures.get(f"{own_products}_flop")
        if timings and flop:
            reached = figures[f"{step}_flop_per_second"] = flop / timings.median
            for job, of_step in PRODUCTS_OF.items():
                if of_step == step and f"{job}_flop" in figures:
                    figures[f"share_of_{job}"] = reached / figures[f"{job}_flop_per_second"]
    return figures


def goals(session: Session) -> Iterator[tuple[str, str]]:
    """What must hold, and whether it does."""
    for (job, way, peer), least in MIN_SPEEDUP.items():
        goal = f"`{job}`: {TITLES.get(way, way)} at least {least} x {TITLES[peer]}"
        timings = session.timings.get(job, {})
        ours, theirs = timings.get(way), timings.get(peer)
        if theirs and ours:
            found = theirs.median / ours.median
            yield goal, _verdict(found >= least, f"{found:.2f} x")
        else:
            yield goal, UNKNOWN
    goal = f"at least {MIN_MATMUL_SHARE:.0%} of the measured matrix-product speed"
    figures = matmul_figures(session)  # torch's products or our kernel's, whichever are faster
    shares = [figures[x] for x in ("share_of_matmul", "share_of_matmul_kernel") if x in figures]
    share = min(shares, default=None)
    yield goal, _verdict(share >= MIN_MATMUL_SHARE, f"{share:.0%}") if share else UNKNOWN
    goal = f"replay: at most {MAX_REPLAY_OVERHEAD} x the bytes that are needed"
    if replay := session.timings.get("replay_sample", {}).get(OURS.name):
        stored, needed = (
            replay.figures[key] for key in ("bytes_per_transition", "needed_bytes_per_transition")
        )
        overhead = stored / needed
        yield goal, _verdict(overhead <= MAX_REPLAY_OVERHEAD, f"{overhead:.2f} x")
    else:
        yield goal, UNKNOWN


def _fastest_of_ours(session: Session, job: str) -> Timings | None:
    """In float32: with the kernels alone or compiled as well, whichever is faster."""
    timings = session.timings.get(job, {})
    ours = [timings[name] for name in (OURS.name, COMPILED.name) if name in timings]
    return min(ours, key=lambda t: t.median, default=None)


def _verdict(met: bool, found: str) -> str:
    return f"{found}, {'met' if met else 'MISSED'}"


def render(session: Session, settings: dict[str, Any]) -> str:
    """The whole report in Markdown."""
    machine = settings["machine"]
    lines = [
        f"Measured {settings['date']} on {machine['processor']} ({machine['instructions']}), "
        f"{settings['threads']} of {machine['cores']} cores, {machine['memory_gb']} GB, "
        f"{machine['system']}; discorl {settings['commit']}; {settings['rounds']} rounds.",
        *_quietness(session, settings["clock"] == "processor_seconds"),
        "",
        *_table(session),
        "",
        *_matmul_lines(session),
        *_goal_lines(session),
        *_facts(session),
    ]
    return "\n".join(lines) + "\n"


def _quietness(session: Session, on_processor: bool) -> list[str]:
    if not session.busy:
        return []
    warning = " **Not quiet: do not publish.**"
    if on_processor:
        warning = " Times are processor time: compare their ratios, not the speeds."
    middle, most = statistics.median(session.busy), max(session.busy)
    text = f"Others used {middle:.0%} of the machine (median over rounds; at most {most:.0%})."
    return [text + (warning if on_processor or middle >= QUIET else "")]


def _table(session: Session) -> list[str]:
    """A row for each job, a column for each implementation; the ratio is that of the medians."""
    names = _columns(session)
    lines = [
        "| work | " + " | ".join(TITLES.get(name, name) for name in names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for job in JOBS:
        if job.name in session.timings and job.name not in PRODUCTS_OF:
            cells = [_time_cell(session, job, name) for name in names]
            lines.append(f"| {job.title} | " + " | ".join(cells) + " |")
    replay = session.timings.get("replay_sample", {})
    if stored := {name: t.figures["bytes_per_transition"] for name, t in replay.items()}:
        lines.append(
            _amounts_row(session, "replay, bytes per transition", stored, "{:,.0f}".format)
        )
    for job in JOBS:
        if of_job := session.memory.get(job.name):
            peaks = {name: figures["peak"] for name, figures in of_job.items()}
            title = f"peak memory: {job.title}"
            lines.append(_amounts_row(session, title, peaks, lambda x: f"{x / 2**20:,.0f} MiB"))
    return lines


def _columns(session: Session) -> list[str]:
    """Implementations, ourselves first."""
    return list(dict.fromkeys([OURS.name, *session.facts, *session.absent]))


def _time_cell(session: Session, job: TimedJob, name: str) -> str:
    timings = session.timings[job.name]
    if name not in timings:
        return _missing(session, name)
    mine = timings[name]
    low, high = mine.quartiles
    if job.units:
        scale = 1e6 if job.unit == "M/s" else 1.0
        per_second = [job.units / x / scale for x in (mine.median, high, low)]
        digits = 2 if job.unit == "M/s" else 0
        middle, least, most = (f"{x:.{digits}f}" for x in per_second)
        cell = f"{middle} {job.unit} ({least}-{most})"
    else:
        cell = f"{_milliseconds(mine.median)} ms ({_milliseconds(low)}-{_milliseconds(high)})"
    return cell + _ratio(mine, timings.get(OURS.name), name)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def _ratio(mine: Timings, ours: Timings | None, name: str) -> str:
    """How many times as long as ours, and the quartiles of that over the rounds."""
    if ours is None or name == OURS.name:
        return ""
    low, high = quartiles(ratio_by_round(mine, ours))
    return f", **{mine.median / ours.median:.2f} x** ({low:.2f}-{high:.2f})"


def _amounts_row(
    session: Session, title: str, amounts: dict[str, Any], form: Callable[[float], str]
) -> str:
    cells = []
    for name in _columns(session):
        if name not in amounts:
            cells.append(_missing(session, name))
        elif name == OURS.name or OURS.name not in amounts:
            cells.append(form(amounts[name]))
        else:
            ratio = amounts[name] / amounts[OURS.name]
            cells.append(f"{form(amounts[name])}, **{ratio:.2f} x**")
    return f"| {title} | " + " | ".join(cells) + " |"


def _missing(session: Session, name: str) -> str:
    return "absent" if name in session.absent else "-"


def _matmul_lines(session: Session) -> list[str]:
    figures = matmul_figures(session)
    if not figures:
        return []
    lines = [
        "| matrix products | GFLOP | GFLOP/s | what the step reaches of it |",
        "|---|---|---|---|",
    ]
    titles = {
        "matmul": "those of the training step, alone",
        "matmul_kernel": "the same, by our kernel",
        "matmul_square": "2048 x 2048, alone",
        "discover_matmul": "those of the suite's step of discovery, alone",
        "catch_matmul": "those of its agents on Catch, alone",
    }
    for job, title in titles.items():
        if f"{job}_flop" in figures:
            share = figures.get(f"share_of_{job}")
            flop, speed = figures[f"{job}_flop"] / 1e9, figures[f"{job}_flop_per_second"] / 1e9
            lines.append(f"| {title} | {flop:.1f} | {speed:.0f} | {_percent(share)} |")
    titles = {
        "train_step": "the whole training step",
        "discover_suite": "the whole step of discovery",
        "discover_catch": "the whole step of its agents on Catch",
    }
    for job, title in titles.items():
        if speed := figures.get(f"{job}_flop_per_second"):
            flop = figures[f"{OWN_PRODUCTS[job]}_flop"] / 1e9
            lines.append(f"| {title} | {flop:.1f} | {speed / 1e9:.0f} | |")
    return [*lines, ""]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _goal_lines(session: Session) -> list[str]:
    """Of what was measured: a report on a few jobs does not list the goals of all others."""
    lines = [f"| {goal} | {result} |" for goal, result in goals(session) if result != UNKNOWN]
    return ["| goal | result |", "|---|---|", *lines, ""] if lines else []


def _facts(session: Session) -> list[str]:
    lines = []
    for name, facts in session.facts.items():
        lines.append(f"- {name}: " + ", ".join(f"{key} {value}" for key, value in facts.items()))
    lines += [f"- {name} is absent: {reason}" for name, reason in session.absent.items()]
    if {"disco-torch", "disco-torch-fast"} & session.facts.keys():
        lines.append(DISCO_TORCH_NOTE)
    for job, failures in session.failed.items():
        for name, reason in failures.items():
            if job not in PRODUCTS_OF or name == OURS.name:
                lines.append(f"- {name} without {job}: {reason}")
    return lines


def report_stem(now: datetime, kind: str) -> str:
    """Files of a day sort by name."""
    return f"{now:%Y-%m-%d}-{kind}"
