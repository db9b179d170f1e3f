"""Settings of a discovery run. The text under a field is its help on the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from discorl.bounds import (
    MAX_AT_ONCE,
    MAX_WIDTH,
    check_above_0,
    check_at_least,
    check_between,
    check_shares,
    shown,
)
from discorl.errors import DiscorlError
from discorl.meta.meta_step import MetaOptimiser
from discorl.meta.meta_value import MetaValueSettings
from discorl.meta.objective import ObjectiveWeights
from discorl.meta.window import WindowSettings
from discorl.rules.values import ValueHead
from discorl.runs.checkpoint import CheckpointConfig
from discorl.runs.distributed import check_timeout
from discorl.runs.logs import log_names
from discorl.runs.threads import check_threads
from discorl.training.config import NetConfig

WARM_START = 150
"""Meta-steps of imitation before the meta-gradient, if a preset asks for any."""


@dataclass(frozen=True)
class GroupConfig:
    """Agents of one structure on one kind of task."""

    task: str
    num_agents: int
    net: NetConfig

    @classmethod
    def parse(cls, text: str, net: NetConfig) -> GroupConfig:
        """From ``TASK``, ``TASK*AGENTS`` or ``TASK*AGENTS/WIDTHxWIDTH``, the agent's torso."""
        match = re.fullmatch(r"([^*/]+)(?:\*(\d{1,9}))?(?:/(\d{1,9}(?:x\d{1,9})*))?", text)
        if match is None or match[2] == "0":
            raise DiscorlError(
                f"'{text}' is not a group of agents: write TASK, TASK*AGENTS or "
                "TASK*AGENTS/WIDTHxWIDTH, as in catch:5x5*4/64x64"
            )
        if match[3]:
            widths = tuple(int(n) for n in match[3].split("x"))
            net = replace(net, torso=widths)
        num_agents = int(match[2] or 1)
        check_between(1, MAX_AT_ONCE, f"{match[1]}: the number of agents", num_agents)
        return cls(match[1], num_agents, net)


@dataclass(frozen=True)
class RuleConfig:
    """The rule to discover, if it starts from random weights."""

    prediction_size: int = 600
    """Size of the predictions y and z."""
    hidden: int = 256
    """Width of the LSTM that runs backward over trajectories."""
    lifetime_hidden: int = 128
    """Width of the LSTM that takes one step for each update of an agent."""
    embedding_width: int = 16
    """Hidden width of the small embeddings."""
    num_bins: int = 601
    """How many bins the action values have."""
    max_abs_value: float = 300.0
    """The bins cover values from minus this to plus this, on the squashed scale."""
    discount: float = 0.997
    """Discount of the agents' returns."""
    lambda_: float = 0.95
    """Trace parameter of Retrace."""
    mask_episode_starts: bool = True
    """Leave the first step of each episode out of the agents' loss, as Disco103's agents do."""

    open_gate: bool = False
    """Start with the lifetime LSTM letting everything through. The reference's random start lets
    nothing of a trajectory through at first, and discovery must find a way around that."""

    def __post_init__(self) -> None:
        sizes = ("prediction_size", "hidden", "lifetime_hidden", "embedding_width")
        check_at_least(1, "rule: ", self, *sizes, most=MAX_WIDTH)
        ValueHead(self.num_bins, self.max_abs_value)
        check_shares("rule: ", self, "discount", "lambda_")


@dataclass(frozen=True)
class DiscoverConfig:
    """Discover an update rule."""

    tasks: tuple[str, ...] = ("catch:5x5*2",)
    """Groups of agents, each TASK, TASK*AGENTS or TASK*AGENTS/WIDTHxWIDTH (the agents' torso):
    catch:5x5*4 grid:random-small*8/64x64. More agents on a task give it more weight."""
    held_out: tuple[str, ...] = ()
    """Tasks that the rule never trains on; agents train on them to show how well it generalises."""
    init: str = "random"
    """Where the rule starts: random, or the name or path of a rule to fine-tune."""
    warm_start: int | None = 0
    """How many meta-steps at the start the rule only learns to imitate a hand-written target (the
    target network's policy moved by clipped advantages), which gives the meta-gradient more to work
    with. None means 150 from random weights, and 0 from a rule, which they would spoil."""
    warm_start_rate: float = 3e-3
    """Step size of the rule while it imitates."""
    steps: int = 800
    """Meta-steps, warm start included."""
    seed: int = 0
    """Two runs with the same seed on the same machine are identical, bit for bit."""
    device: str = "auto"
    """cpu, cuda, mps, or auto for the fastest one available."""
    threads: int | Literal["auto"] = "auto"
    """How many threads torch uses. auto times real steps, at the start and again when they slow
    down, and picks the fastest; small networks get one. It never uses more than OMP_NUM_THREADS."""
    out: Path | None = None
    """Folder for the run; by default a new one in runs/."""

    lifetimes: tuple[int, ...] = ()
    """Lifetimes of agents in updates, drawn with weight 1 / lifetime; after that the agent starts
    over. None means that agents live for ever."""
    learning_rate: float = 5e-4
    """Learning rate of the agents."""
    max_abs_update: float = 1.0
    """Clip the agents' updates to this size, after Adam."""

    eval_every: int = 100
    """Meta-steps between evaluations on the held-out tasks."""
    eval_updates: int = 200
    """How many updates the agents make in an evaluation."""
    eval_agents: int = 4
    """How many agents are evaluated on each held-out task."""
    snapshot_every: int = 100
    """Meta-steps between saved copies of the rule."""
    checkpoint_every: int = 50
    """Meta-steps between checkpoints, from which --resume continues exactly."""
    checkpoint_minutes: float | None = 10.0
    """Also save a checkpoint every so many minutes; None to go by meta-steps only."""
    keep_checkpoints: int = 2
    """How many checkpoints to keep."""
    log_every: int = 5
    """Meta-steps between lines of metrics.jsonl."""
    log: str = ""
    """Where metrics go besides metrics.jsonl: tensorboard, wandb, or both (tensorboard,wandb)."""
    timeout_minutes: float = 10.0
    """How long to wait for another process under torchrun: one that hangs or was stopped ends the
    run, which keeps what it has."""
    progress: Literal["auto", "bar", "lines", "none"] = "auto"
    """How to show progress; auto draws a bar on a terminal and prints lines elsewhere."""

    rule: RuleConfig = field(default_factory=RuleConfig)
    net: NetConfig = field(default_factory=NetConfig)
    window: WindowSettings = field(default_factory=WindowSettings)
    objective: ObjectiveWeights = field(default_factory=ObjectiveWeights)
    meta_value: MetaValueSettings = field(default_factory=MetaValueSettings)
    meta_optimiser: MetaOptimiser = field(default_factory=MetaOptimiser)

    @property
    def num_imitations(self) -> int:
        """Meta-steps in the warm start."""
        if self.warm_start is not None:
            return self.warm_start
        return WARM_START if self.init == "random" else 0

    def __post_init__(self) -> None:
        net = self.net
        is_conv = net.torso_kind not in ("auto", "mlp") or net.channels
        if net.core_lstm or is_conv or net.dense != NetConfig.dense:
            raise DiscorlError(
                "net: a population's agents are MLPs without memory; leave --net.core-lstm, "
                "--net.torso-kind, --net.channels and --net.dense as they are"
            )
        if not self.tasks:
            raise DiscorlError("tasks: name at least one, as in --tasks catch:5x5*2")
        for text in (*self.tasks, *self.held_out):
            GroupConfig.parse(text, self.net)
        if any(n < self.window.num_updates for n in self.lifetimes):
            raise DiscorlError("lifetimes must be at least a window long: raise them")
        check_at_least(1, "", self, "eval_agents", most=MAX_AT_ONCE)
        positive = ("steps", "eval_every", "eval_updates", "snapshot_every")
        check_at_least(1, "", self, *positive, "checkpoint_every", "keep_checkpoints", "log_every")
        check_above_0("", self, "learning_rate", "max_abs_update", "warm_start_rate")
        log_names(self.log)
        check_threads(self.threads)
        check_timeout(self.timeout_minutes)
        if self.checkpoint_minutes is not None and not self.checkpoint_minutes > 0:
            raise DiscorlError("checkpoint_minutes must be above 0, or None")
        if self.num_imitations < 0:
            raise DiscorlError(f"warm_start must be 0 or more, not {self.warm_start}")
        if abs(self.seed) >= 2**43:  # each group gets its own stream from it, see Discovering
            raise DiscorlError(f"seed must be below 2^43, not {shown(self.seed)}")

    @property
    def checkpoint(self) -> CheckpointConfig:
        """When to save checkpoints, and how many to keep."""
        return CheckpointConfig(
            self.checkpoint_every, self.checkpoint_minutes, self.keep_checkpoints
        )

    @property
    def groups(self) -> tuple[GroupConfig, ...]:
        """The population."""
        return tuple(GroupConfig.parse(text, self.net) for text in self.tasks)


MAY_CHANGE = (
    *("steps", "learning_rate", "meta_optimiser.learning_rate", "meta_optimiser.max_norm"),
    *("checkpoint_every", "checkpoint_minutes", "keep_checkpoints"),
    *("threads", "timeout_minutes", "device", "log", "progress", "out"),
)
"""What may differ when a run is resumed."""
