"""Where the time of our training step goes: ``python -m benchmarks --profile``."""

from __future__ import annotations

from collections import Counter

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.peers import ours
from discorl.runs.malloc import keep_freed_memory

KINDS = {
    "matrix products": {
        *("aten::mm", "aten::addmm", "aten::bmm", "aten::addmv_", "aten::mv"),
        *("discorl::mm", "discorl::linear"),
    },
    "kernel: softmax with the products around it": {"discorl::softmax_linear"},
    "softmax": {"aten::_softmax", "aten::_log_softmax"},
    "copies, of biases most of all": {"aten::copy_", "aten::cat", "aten::index", "aten::gather"},
    "gates of LSTMs": {
        f"aten::{name}{suffix}" for name in ("sigmoid", "tanh") for suffix in ("", "_backward")
    },
}
WARM_UPS, RUNS = 5, 10


def profile_step(compiled: bool) -> str:
    """Markdown: milliseconds of a training step by kind of operation, and its share."""
    keep_freed_memory()
    ours.COMPILE = compiled
    job = ours.train()
    for _ in range(WARM_UPS):
        job.run()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(RUNS):
            job.run()
    times: Counter[str] = Counter()
    for event in profiler.key_averages():
        times[kind_of(event.key)] += event.self_cpu_time_total / 1e3 / RUNS
    total = sum(times.values())
    lines = [
        f"A training step, {'' if compiled else 'un'}compiled, {torch.get_num_threads()} threads: "
        f"{total:.0f} ms, of which",
        "",
        "| operations | ms | share |",
        "|---|---|---|",
        *(f"| {kind} | {x:.1f} | {x / total:.0%} |" for kind, x in times.most_common()),
    ]
    return "\n".join(lines) + "\n"


def kind_of(operation: str) -> str:
    """What a profiler's event counts as."""
    for kind, names in KINDS.items():
        if operation in names:
            return kind
    if operation.startswith("discorl::"):
        return "other kernels"
    return "torch.compile's" if "CompiledFxGraph" in operation else "all else"
