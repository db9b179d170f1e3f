"""``discorl discover``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from discorl.cli.parse import parse


def discover_command(args: list[str]) -> int:
    """Discover a rule, or go on with a discovery; returns the exit code."""
    from discorl.discovery.config import DiscoverConfig
    from discorl.discovery.discover import discover, resume_discovery
    from discorl.discovery.presets import PRESETS, discovery_preset

    if any(a == "--resume" or a.startswith("--resume=") for a in args):
        changes = parse(
            ResumeDiscoveryArgs,
            prog="discorl discover --resume RUN",
            description="Go on with the discovery of a rule, exactly where it stopped.",
            args=args,
        )
        given = {"steps": changes.steps, "progress": changes.progress}
        changed = {name: value for name, value in given.items() if value is not None}
        return 130 if resume_discovery(changes.resume, **changed).interrupted else 0
    preset = "suite"
    if args and not args[0].startswith("-"):
        preset, args = args[0], args[1:]
    config = parse(
        DiscoverConfig,
        prog=f"discorl discover {preset}",
        description=(
            f"Discover an update rule. Presets: {', '.join(PRESETS)}. The defaults below are those "
            f"of '{preset}'."
        ),
        default=discovery_preset(preset),
        args=args,
    )
    return 130 if discover(config).interrupted else 0


@dataclass(frozen=True)
class ResumeDiscoveryArgs:
    """Go on with the discovery of a rule."""

    resume: Path
    """Folder of the run."""
    steps: int | None = None
    """Meta-steps of the whole run, by default as before; raise it to go on for longer."""
    progress: Literal["auto", "bar", "lines", "none"] | None = None
    """How progress is shown, by default as before; auto draws a bar on a terminal and prints lines
    elsewhere."""
