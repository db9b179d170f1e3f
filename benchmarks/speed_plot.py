"""How long everyone takes for the same work, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.workers import OURS

SHOWN = {
    "train_step": "Catch training step,\n3 actions",
    "learn_18": "learner step,\n18 actions",
    "meta_step": "meta-gradient step,\npublic notebook",
}
LABELS = {
    OURS.name: "discorl",
    "plain": "discorl, without kernels",
    "bf16": "discorl, bf16",
    "compiled": "discorl, compiled",
    "jax": "JAX reference",
    "disco-torch": "disco-torch",
    "disco-torch-fast": "disco-torch, our agent for it",
}
COLOURS = {
    OURS.name: "#d1495b",
    "plain": "#e9a3ac",
    "bf16": "#7d1d3f",
    "compiled": "#edae49",
    "jax": "#66849c",
    "disco-torch": "#b8c4ce",
    "disco-torch-fast": "#dde3e8",
}
BAR = 0.8 / len(LABELS)


def plot_times(times: dict[str, Any], path: Path) -> bool:
    """Bars of the medians beside ours; False if no job that is shown was measured.

    ``times`` is that of ``report.summarise``: by job and implementation.
    """
    jobs = [job for job in SHOWN if OURS.name in times.get(job, {})]
    if not jobs:
        return False
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axis = figure.subplots()
    present = [[name for name in LABELS if name in times[job]] for job in jobs]
    for name, label in LABELS.items():
        here = [i for i, names in enumerate(present) if name in names]
        at = [i + (present[i].index(name) - (len(present[i]) - 1) / 2) * BAR for i in here]
        ratios = [times[jobs[i]][name]["ratio_to_discorl"] for i in here]
        bars = axis.bar(at, ratios, BAR, label=label, color=COLOURS[name])
        axis.bar_label(bars, fmt="%.2g", fontsize=8)
    axis.set_xticks(range(len(jobs)), [SHOWN[job] for job in jobs])
    axis.set_ylabel("time, relative to discorl")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)
    return True
