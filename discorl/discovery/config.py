"""Settings of a discovery run. The text under a field is its help on the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from discorl.errors import DiscorlError
from discorl.meta.objective import ObjectiveWeights
from discorl.meta.unroll import MemoryMode
from discorl.runs.checkpoint import CheckpointConfig
from discorl.runs.metrics import log_names
from discorl.training.config import NetConfig

WARM_START = 150
"""Meta-steps of imitation before the meta-gradient, where a preset asks for some."""


@dataclass(frozen=True)
class GroupConfig:
    """Agents of one structure on one kind of task."""

    task: str
    num_agents: int
    net: NetConfig

    @classmethod
    def parse(cls, text: str, net: NetConfig) -> GroupConfig:
        """From ``TASK``, ``TASK*AGENTS`` or ``TASK*AGENTS/WIDTHxWIDTH``, the agent's torso."""
        match = re.fullmatch(r"([^*/]+)(?:\*(\d+))?(?:/(\d+(?:x\d+)*))?", text)
        if match is None or match[2] == "0":
            raise DiscorlError(
                f"'{text}' is not a group of agents: write TASK, TASK*AGENTS or "
                "TASK*AGENTS/WIDTHxWIDTH, as in catch:5x5*4/64x64"
            )
        if match[3]:
            widths = tuple(int(n) for n in match[3].split("x"))
            net = replace(net, torso=widths)
        return cls(match[1], int(match[2] or 1), net)


@dataclass(frozen=True)
class RuleConfig:
    """The rule to discover, where it starts from random weights."""

    prediction_size: int = 600
    """Size of the predictions y and z."""
    hidden: int = 256
    """LSTM that runs backward over trajectories."""
    lifetime_hidden: int = 128
    """LSTM that takes one step for each update of an agent."""
    embedding_width: int = 16
    """Hidden width of the small embeddings."""
    num_bins: int = 601
    """Bins of the action values."""
    max_abs_value: float = 300.0
    """The bins cover values from minus this to this, on the squashed scale."""
    discount: float = 0.997
    """Discount of the agents' returns."""
    lambda_: float = 0.95
    """Trace parameter of Retrace."""
    mask_episode_starts: bool = True
    """Leave the first step of each episode out of the agents' loss, as Disco103's agents do."""

    open_gate: bool = False
    """Start with the lifetime LSTM letting everything through. The reference's random start lets
    nothing of a trajectory through at birth, and discovery must first find a way around that."""

    def __post_init__(self) -> None:
        sizes = (self.prediction_size, self.hidden, self.lifetime_hidden, self.embedding_width)
        if min(sizes) < 1 or self.num_bins < 2:
            raise DiscorlError("rule: every size must be at least 1, and num_bins at least 2")
        _check_above_0("rule: ", self, "max_abs_value")
        _check_shares("rule: ", self, "discount", "lambda_")


@dataclass(frozen=True)
class WindowConfig:
    """What an agent does between two steps of the rule."""

    num_updates: int = 20
    """Updates that the meta-gradient goes back through."""
    stride: int | None = None
    """Updates between two steps of the rule. Fewer than num_updates: the window slides, and the
    gradient goes back through updates of earlier meta-steps, too. None: num_updates, no overlap."""
    num_envs: int = 32
    """Copies of its task that each agent acts in: fresh trajectories for each update."""
    rollout_length: int = 29
    """Time steps of a trajectory."""
    valid_length: int = 29
    """Time steps of the trajectories that judge the updated agent."""
    valid_rollouts: int = 1
    """Such trajectories that each copy makes, one after the other."""
    acts_ahead: bool = False
    """Collect all rollouts of a window before its first update, as the public notebook does."""
    num_replayed: int = 0
    """Replayed trajectories that join the fresh ones in each update."""
    replay_capacity: int = 0
    """Trajectories that each agent keeps for replay."""
    memory: MemoryMode = "recompute"
    """plain keeps the graph of all updates; recompute that of one at a time; mixed that of parts of
    one, by forward-mode derivatives of the agents' gradient."""
    offload: bool = False
    """Keep the agents' states of a window in the memory of the CPU (recompute and mixed)."""

    def __post_init__(self) -> None:
        if min(self.num_updates, self.num_envs, self.valid_rollouts) < 1:
            raise DiscorlError(
                "window: num_updates, num_envs and valid_rollouts must be at least 1"
            )
        if self.stride is not None and not 1 <= self.stride <= self.num_updates:
            raise DiscorlError("window: stride must be from 1 to num_updates")
        if self.memory == "plain" and self.stride not in (None, self.num_updates):
            raise DiscorlError(
                "window: with memory plain there is nothing to slide over; use --window.memory "
                "recompute or mixed, or no --window.stride"
            )
        if min(self.rollout_length, self.valid_length) < 2:
            raise DiscorlError("window: rollouts need at least 2 time steps (a transition)")
        if min(self.num_replayed, self.replay_capacity) < 0:
            raise DiscorlError("window: num_replayed and replay_capacity must be 0 or more")
        if self.num_replayed and self.replay_capacity < self.num_envs:
            raise DiscorlError(
                "window: num_replayed needs a replay_capacity of num_envs trajectories or more"
            )


@dataclass(frozen=True)
class MetaValueConfig:
    """The value function that judges agents for the meta-gradient."""

    torso: tuple[int, ...] = (256, 256)
    """Layers of its network."""
    learning_rate: float = 3e-4
    """Step size of its Adam."""
    discount: float = 0.997
    """Discount of what the rule is to maximise."""
    lambda_: float = 0.95
    """Trace parameter of V-trace."""
    aligned: bool = True
    """Pair each action with the reward that followed it; False is the reference's quirk."""

    def __post_init__(self) -> None:
        if not self.torso or min(self.torso) < 1:
            raise DiscorlError("meta_value: torso needs a layer, and each a width of 1 or more")
        _check_above_0("meta_value: ", self, "learning_rate")
        _check_shares("meta_value: ", self, "discount", "lambda_")


@dataclass(frozen=True)
class MetaOptimiserConfig:
    """How gradients of the rule become steps of it."""

    learning_rate: float = 1e-3
    """Step size."""
    per_agent: bool = True
    """A separate Adam for each agent's gradient, then the mean; else one Adam for the mean."""
    max_abs_update: float = 1.0
    """Clip each element of what Adam says, before the learning rate; 0 for no clip."""
    max_norm: float = 1e3
    """Gradients of an agent beyond this norm are left out and counted."""

    def __post_init__(self) -> None:
        _check_above_0("meta_optimiser: ", self, "learning_rate")
        if not self.max_abs_update >= 0:
            raise DiscorlError("meta_optimiser: max_abs_update must be above 0, or 0 for no clip")
        if not self.max_norm > 0:
            raise DiscorlError(f"meta_optimiser: max_norm must be above 0, not {self.max_norm}")


@dataclass(frozen=True)
class DiscoverConfig:
    """Discover an update rule."""

    tasks: tuple[str, ...] = ("catch:5x5*2",)
    """Groups of agents, each TASK, TASK*AGENTS or TASK*AGENTS/WIDTHxWIDTH (the agents' torso):
    catch:5x5*4 grid:random-small*8/64x64. More agents on a task weigh it more."""
    held_out: tuple[str, ...] = ()
    """Tasks that the rule never trains on; agents are trained on them to see how general it is."""
    init: str = "random"
    """Where the rule starts: random, or the name or path of a rule (fine-tuning)."""
    warm_start: int | None = 0
    """First meta-steps in which the rule only learns to imitate a hand-written target (the target
    network's policy moved by clipped advantages), from where the meta-gradient has more to say.
    None: 150 from random weights, and none from a rule, which they would spoil."""
    warm_start_rate: float = 3e-3
    """Step size of the rule while it imitates."""
    steps: int = 800
    """Meta-steps, warm start included."""
    seed: int = 0
    """Two runs with the same seed on the same machine are equal to the last bit."""
    device: str = "auto"
    """cpu, cuda, mps, or auto for the fastest that is there."""
    out: Path | None = None
    """Folder of the run; by default a new one below runs/."""

    lifetimes: tuple[int, ...] = ()
    """Budgets of agents in updates, drawn with weight 1 / budget; then the agent starts anew. None:
    agents live for ever."""
    learning_rate: float = 5e-4
    """Step size of the agents."""
    max_abs_update: float = 1.0
    """Clip of the agents' updates, after Adam."""

    eval_every: int = 100
    """Meta-steps between two evaluations on the held-out tasks."""
    eval_updates: int = 200
    """Updates of the agents in an evaluation."""
    eval_agents: int = 4
    """Agents of an evaluation, for each held-out task."""
    snapshot_every: int = 100
    """Meta-steps between two saved rules."""
    checkpoint_every: int = 50
    """Meta-steps between two checkpoints, from which --resume goes on exactly."""
    checkpoint_minutes: float | None = 10.0
    """Minutes between two checkpoints, besides those by meta-steps; None for those alone."""
    keep_checkpoints: int = 2
    """Checkpoints kept."""
    log_every: int = 5
    """Meta-steps between two lines of metrics.jsonl."""
    log: str = ""
    """Where metrics go besides metrics.jsonl: tensorboard, wandb, or both with a comma."""
    progress: Literal["auto", "bar", "lines", "none"] = "auto"
    """How progress is shown; auto draws a bar on a terminal and prints lines elsewhere."""

    rule: RuleConfig = field(default_factory=RuleConfig)
    net: NetConfig = field(default_factory=NetConfig)
    window: WindowConfig = field(default_factory=WindowConfig)
    objective: ObjectiveWeights = field(default_factory=ObjectiveWeights)
    meta_value: MetaValueConfig = field(default_factory=MetaValueConfig)
    meta_optimiser: MetaOptimiserConfig = field(default_factory=MetaOptimiserConfig)

    @property
    def num_imitations(self) -> int:
        """Meta-steps of the warm start."""
        if self.warm_start is not None:
            return self.warm_start
        return WARM_START if self.init == "random" else 0

    def __post_init__(self) -> None:
        net = self.net
        is_conv = net.torso_kind not in ("auto", "mlp") or net.channels
        if net.core_lstm or is_conv or net.dense != NetConfig.dense:
            raise DiscorlError(
                "net: agents of a population are MLPs without a memory; leave --net.core-lstm, "
                "--net.torso-kind, --net.channels and --net.dense as they are"
            )
        if not self.tasks:
            raise DiscorlError("tasks: name at least one, as in --tasks catch:5x5*2")
        for text in (*self.tasks, *self.held_out):
            GroupConfig.parse(text, self.net)
        if any(n < self.window.num_updates for n in self.lifetimes):
            raise DiscorlError("lifetimes must be at least a window long: raise them")
        positive = ("steps", "eval_every", "eval_updates", "eval_agents", "snapshot_every")
        log_names(self.log)
        if self.checkpoint_minutes is not None and not self.checkpoint_minutes > 0:
            raise DiscorlError("checkpoint_minutes must be above 0, or None")
        for name in (*positive, "checkpoint_every", "keep_checkpoints", "log_every"):
            if getattr(self, name) < 1:
                raise DiscorlError(f"{name} must be at least 1, not {getattr(self, name)}")
        _check_above_0("", self, "learning_rate", "max_abs_update", "warm_start_rate")
        if self.num_imitations < 0:
            raise DiscorlError(f"warm_start must be 0 or more, not {self.warm_start}")
        if abs(self.seed) >= 2**43:  # each group has a stream of it, see Discovering
            raise DiscorlError(f"seed must be below 2^43, not {self.seed}")

    @property
    def checkpoint(self) -> CheckpointConfig:
        """When there are checkpoints, and how many are kept."""
        return CheckpointConfig(
            self.checkpoint_every, self.checkpoint_minutes, self.keep_checkpoints
        )

    @property
    def groups(self) -> tuple[GroupConfig, ...]:
        """The population."""
        return tuple(GroupConfig.parse(text, self.net) for text in self.tasks)


def _check_above_0(part: str, settings: object, *names: str) -> None:
    for name in names:
        if not 0 < getattr(settings, name) < float("inf"):
            raise DiscorlError(f"{part}{name} must be a number above 0")


def _check_shares(part: str, settings: object, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(settings, name) <= 1:
            raise DiscorlError(f"{part}{name} must lie between 0 and 1")
