"""``discorl discover``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from discorl.cli.first_use import ask_before_download
from discorl.cli.options import options_of
from discorl.cli.parse import folder_to_resume, parse, parse_changes, split_places
from discorl.errors import DiscorlError


def discover_command(args: list[str]) -> int:
    """Discover a rule, or resume a discovery; returns the exit code."""
    from discorl.discovery.config import DiscoverConfig
    from discorl.discovery.discover import discover, resume_discovery
    from discorl.discovery.presets import PRESETS, discovery_preset
    from discorl.runs.config_file import read_settings

    if (folder := folder_to_resume(args)) is not None:
        config, _ = read_settings(folder, DiscoverConfig, "discover")
        changes = parse_changes(ResumeDiscoveryArgs, "discover", folder, config, args)
        return 130 if resume_discovery(folder, **changes).interrupted else 0
    presets, args = split_places(args, options_of(DiscoverConfig))
    if len(presets) > 1:
        raise DiscorlError(f"one preset at a time, but these are {', '.join(presets)}")
    preset = presets[0] if presets else "suite"
    config = parse(
        DiscoverConfig,
        usage=f"discorl discover {preset}",
        about=(
            f"Discover an update rule. Presets: {', '.join(PRESETS)}. The defaults below are those "
            f"of '{preset}'."
        ),
        default=discovery_preset(preset),
        args=args,
    )
    if config.init is not None:
        ask_before_download(config.init)
    return 130 if discover(config).interrupted else 0


@dataclass(frozen=True)
class ResumedMetaOptimiser:
    """The meta-optimiser; its other settings stay as they were."""

    learning_rate: float
    """Learning rate of the rule's Adam."""
    max_norm: float
    """Drop, and count, an agent's gradient if its norm exceeds this."""


@dataclass(frozen=True)
class ResumeDiscoveryArgs:
    """What you can change when you resume a discovery."""

    resume: Path
    """Folder of the run."""
    steps: int
    """Total meta-steps of the run; raise this to keep going for longer."""
    checkpoint_every: int
    """Meta-steps between checkpoints."""
    checkpoint_minutes: float | None
    """Also save a checkpoint every so many minutes; None to go by meta-steps only."""
    keep_checkpoints: int
    """How many checkpoints to keep."""
    threads: int | Literal["auto"]
    """How many threads torch uses; auto uses as many as make it faster."""
    log: str
    """Where metrics go besides metrics.jsonl: tensorboard, wandb, or both (tensorboard,wandb)."""
    timeout_minutes: float
    """How long to wait for another process under torchrun."""
    progress: Literal["auto", "bar", "lines", "none"]
    """How to show progress; auto draws a bar on a terminal and prints lines elsewhere."""
    learning_rate: float
    """Learning rate of the agents."""
    meta_optimiser: ResumedMetaOptimiser
