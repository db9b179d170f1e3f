"""Settings of a discovery run. The text under a field is its help on the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from discorl.bounds import (
    MAX_AT_ONCE,
    MAX_COUNT,
    MAX_WIDTH,
    check_above_0,
    check_at_least,
    check_between,
    check_shares,
    shown,
)
from discorl.envs.env_config import EnvConfig
from discorl.envs.suites import tasks_of
from discorl.errors import DiscorlError
from discorl.meta.evolution import EvolutionSettings, num_pairs
from discorl.meta.meta_step import MetaOptimiser
from discorl.meta.meta_value import MetaValueSettings
from discorl.meta.objective import ObjectiveWeights
from discorl.meta.window import WindowSettings
from discorl.nets.build import IMAGE_TORSOS
from discorl.nets.net_config import NetConfig
from discorl.option_marks import Common
from discorl.rules.values import ValueHead
from discorl.runs.checkpoint import CheckpointConfig
from discorl.runs.distributed import check_timeout
from discorl.runs.logs import log_names
from discorl.runs.threads import check_threads

WARM_START = 150
"""Meta-steps of imitation before the meta-gradient, if a preset asks for any."""


_NET = r"\d{1,9}(?:x\d{1,9})*|mlp|conv|nature|impala|lstm\d{1,9}"
_GROUP = re.compile(rf"([^*]+?)(?:\*(\d{{1,9}}))?(?:/((?:{_NET})(?:\+(?:{_NET}))*))?")


@dataclass(frozen=True)
class GroupConfig:
    """Agents of one structure on one kind of task."""

    task: str
    num_agents: int
    net: NetConfig

    @classmethod
    def parse(cls, text: str, net: NetConfig) -> GroupConfig:
        """From ``TASK``, ``TASK*AGENTS`` or ``TASK*AGENTS/NET``."""
        match = _GROUP.fullmatch(text)
        if match is None or match[2] == "0":
            raise DiscorlError(
                f"'{text}' is not a group of agents: write TASK, TASK*AGENTS or TASK*AGENTS/NET, "
                "as in catch:5x5*4/64x64, ale:Pong*2/impala or memory*4/64x64+lstm32"
            )
        for part in (match[3] or "").split("+"):
            if part.startswith("lstm"):
                net = replace(net, core_lstm=int(part.removeprefix("lstm")))
            elif part in IMAGE_TORSOS or part == "mlp":
                net = replace(net, torso_kind=part)
            elif part:
                net = replace(net, torso=tuple(int(n) for n in part.split("x")))
        num_agents = int(match[2] or 1)
        check_between(1, MAX_AT_ONCE, f"{match[1]}: the number of agents", num_agents)
        return cls(match[1], num_agents, net)


def groups_of(texts: Sequence[str]) -> tuple[str, ...]:
    """The groups that texts name, with the tasks of a whole suite in the place of its name."""
    expanded = []
    for text in texts:
        name = re.split(r"[*/]", text)[0]
        tasks = tasks_of(name) or [name]
        expanded += [task + text.removeprefix(name) for task in tasks]
    return tuple(expanded)


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

    predictions: bool = True
    """Whether agents learn predictions y and z, whose meaning the rule decides."""
    value: bool = True
    """Whether agents learn action values q. Without them the rule sees rewards, but neither values
    nor advantages, and an episode that a time limit cuts off ends like any other."""
    auxiliary: bool = True
    """Whether agents also learn to predict their policy one step ahead."""
    lifetime: bool = True
    """Whether the rule has an LSTM that remembers an agent's earlier updates."""
    prior: bool = False
    """Start from the hand-written rule cmpo: the network learns what to add to its target, and how
    strong that is; before the first meta-step it adds nothing."""

    def __post_init__(self) -> None:
        sizes = ("prediction_size", "hidden", "lifetime_hidden", "embedding_width")
        check_at_least(1, "rule: ", self, *sizes, most=MAX_WIDTH)
        ValueHead(self.num_bins, self.max_abs_value)
        check_shares("rule: ", self, "discount", "lambda_")


@dataclass(frozen=True)
class DiscoverConfig:
    """Discover an update rule."""

    tasks: Common[tuple[str, ...]] = ("catch:5x5*2",)
    """Groups of agents, each TASK, TASK*AGENTS or TASK*AGENTS/NET: catch:5x5*4 gym:CartPole-v1*2
    minatar:breakout*2/conv. Any task of 'discorl train' will do, and the names of whole suites:
    atari57*2, minatar5*2, procgen16*2. NET has layer widths, mlp, conv, nature, impala or lstmSIZE,
    with + between them (64x64+lstm32); without it --net decides. More agents on a task give it more
    weight."""
    held_out: Common[tuple[str, ...]] = ()
    """Tasks that the rule is chosen by: fresh agents train on them as 'discorl train' would, and
    the rule that does best is kept as best.npz. Keep others for a final test."""
    init: Common[str] = "random"
    """Where the rule starts: random, or the name or path of a rule to fine-tune."""
    estimator: Common[Literal["gradient", "evolution"]] = "gradient"
    """How to find out which way the rule should move: by the gradient through windows of updates,
    or by evolution strategies from whole lives. Those train as 'discorl train' would, for
    --lifetimes updates, whatever --window, --net and --learning-rate are, and their agents come in
    pairs."""
    warm_start: int | None = 0
    """How many meta-steps at the start the rule only learns to imitate a hand-written target (the
    target network's policy moved by clipped advantages), which gives the meta-gradient more to work
    with. None means 150 from random weights, and 0 from a rule or a prior, which they would
    spoil."""
    warm_start_rate: float = 3e-3
    """Step size of the rule while it imitates."""
    steps: Common[int] = 800
    """Meta-steps, warm start included."""
    seed: Common[int] = 0
    """Two runs with the same seed on the same machine are identical, bit for bit."""
    device: Common[str] = "auto"
    """cpu, cuda, mps, or auto for the fastest one available."""
    threads: int | Literal["auto"] = "auto"
    """How many threads to use. Groups on tensor tasks live side by side, one in each thread; what
    is left over goes into their operations. How groups are shared out changes no bit of the rule.
    auto times real steps, at the start and again when they slow down, and picks the fastest. It
    never uses more than OMP_NUM_THREADS."""
    kernels: Literal["auto", "on", "off"] = "auto"
    """Use our own kernels in C++, on a CPU with AVX-512. auto uses them if there is a C++ compiler,
    which then takes ten to twenty seconds the first time on a machine, unless DISCORL_KERNELS is
    off. They round differently from torch; a run that is resumed keeps to what it began with."""
    out: Common[Path | None] = None
    """Folder for the run; by default a new one in runs/."""

    lifetimes: tuple[int, ...] = ()
    """Lifetimes of agents, drawn with weight 1 / lifetime; after that the agent starts over. None
    means that agents live for ever."""
    lifetimes_in: Literal["updates", "env-steps"] = "updates"
    """What lifetimes count: updates, or the steps that an agent takes in its environments."""
    learning_rate: float = 5e-4
    """Learning rate of the agents."""
    learning_rate_spread: float = 1.0
    """Each agent draws its own learning rate at birth, around the one above: the highest possible
    is so many times the lowest. A rule that has met many rates depends less on finding the right
    one."""
    max_abs_update: float = 1.0
    """Clip the agents' updates to this size, after Adam."""

    eval_every: Common[int] = 100
    """Meta-steps between evaluations on the held-out tasks."""
    eval_updates: int = 200
    """How many updates the agents make in an evaluation."""
    eval_agents: int = 4
    """How many agents are evaluated on each held-out task."""
    eval_average: int = 50
    """About how many meta-steps a moving average of the rule's weights goes back. It is evaluated
    beside the rule itself, and kept if it is better; 1 for no average."""
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
    log: Common[str] = ""
    """Where metrics go besides metrics.jsonl: tensorboard, wandb, or both (tensorboard,wandb)."""
    timeout_minutes: float = 10.0
    """How long to wait for another process under torchrun: one that hangs or was stopped ends the
    run, which keeps what it has."""
    progress: Literal["auto", "bar", "lines", "none"] = "auto"
    """How to show progress; auto draws a bar on a terminal and prints lines elsewhere."""

    rule: RuleConfig = field(default_factory=RuleConfig)
    net: NetConfig = field(default_factory=NetConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    window: WindowSettings = field(default_factory=WindowSettings)
    objective: ObjectiveWeights = field(default_factory=ObjectiveWeights)
    evolution: EvolutionSettings = field(default_factory=EvolutionSettings)
    meta_value: MetaValueSettings = field(default_factory=MetaValueSettings)
    meta_optimiser: MetaOptimiser = field(default_factory=MetaOptimiser)

    @property
    def num_imitations(self) -> int:
        """Meta-steps in the warm start."""
        if self.warm_start is not None:
            return self.warm_start
        return WARM_START if self.init == "random" and not self.rule.prior else 0

    def __post_init__(self) -> None:
        if not self.tasks:
            raise DiscorlError("tasks: name at least one, as in --tasks catch:5x5*2")
        for text in groups_of((*self.tasks, *self.held_out)):
            GroupConfig.parse(text, self.net)
        if self.env.exact_resume:
            raise DiscorlError("--env.exact-resume is only for 'discorl train': remove it")
        if self.env.suite is not None:
            raise DiscorlError("env.suite: a population has its suites' default options; remove it")
        if any(n < self.window.num_updates for n in self.budgets):
            raise DiscorlError("lifetimes must be at least a window long: raise them")
        check_between(0, MAX_COUNT, "a lifetime", max(self.lifetimes, default=0))
        if self.estimator == "evolution":
            num_pairs([group.num_agents for group in self.groups])
            if not self.lifetimes:
                raise DiscorlError("evolution: lives must end: give --lifetimes, as in 40 80 160")
        check_at_least(1, "", self, "eval_agents", most=MAX_AT_ONCE)
        positive = ("steps", "eval_every", "eval_updates", "snapshot_every")
        positive += ("eval_average", "checkpoint_every", "keep_checkpoints", "log_every")
        check_at_least(1, "", self, *positive)
        check_above_0("", self, "learning_rate", "max_abs_update", "warm_start_rate")
        if not 1 <= self.learning_rate_spread <= 1e6:
            raise DiscorlError("learning_rate_spread must be between 1, for one rate, and 1e6")
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
    def budgets(self) -> tuple[int, ...]:
        """Lifetimes in updates."""
        if self.lifetimes_in == "updates":
            return self.lifetimes
        steps_per_update = self.window.num_envs * self.window.rollout_length
        return tuple(n // steps_per_update for n in self.lifetimes)

    @property
    def groups(self) -> tuple[GroupConfig, ...]:
        """The population."""
        return tuple(GroupConfig.parse(text, self.net) for text in groups_of(self.tasks))


MAY_CHANGE = (
    *("steps", "learning_rate", "meta_optimiser.learning_rate", "meta_optimiser.max_norm"),
    *("checkpoint_every", "checkpoint_minutes", "keep_checkpoints"),
    *("threads", "timeout_minutes", "device", "log", "progress", "out"),
    "kernels",  # the run says what it had: not all machines have a compiler
)
"""What may differ when a run is resumed."""
