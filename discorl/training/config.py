"""Settings of a training run: frozen dataclasses, checked as they are made.

The text under a field is its help on the command line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from discorl.agents.replay import num_trajectories
from discorl.bounds import (
    MAX_AT_ONCE,
    check_above_0,
    check_at_least,
    check_numbers,
    check_shares,
    shown,
)
from discorl.envs.env_config import EnvConfig
from discorl.errors import DiscorlError
from discorl.nets.net_config import NetConfig
from discorl.option_marks import Common
from discorl.rules.actor_critic import ActorCriticSettings
from discorl.rules.cmpo import CMPOSettings
from discorl.rules.disco import DiscoSettings
from discorl.rules.policy_gradient import PolicyGradientSettings
from discorl.rules.values import ReturnSettings
from discorl.runs.checkpoint import CheckpointConfig
from discorl.runs.distributed import check_timeout
from discorl.runs.logs import log_names
from discorl.runs.threads import check_threads


@dataclass(frozen=True)
class OptimiserConfig:
    """Adam, then a clip of every element, then the learning rate."""

    learning_rate: Common[float] = 1e-2
    """Step size."""
    max_abs_update: float = 1.0
    """Clip every element to this size, after Adam and before the learning rate."""
    weight_decay: float = 0.0
    """Decoupled weight decay: pulls parameters towards 0 by this much times the learning rate."""
    schedule: Literal["constant", "cosine"] = "constant"
    """What the learning rate does after the warm-up: stay, or fall to 0 by the end of the run."""
    warmup_steps: int = 0
    """Environment steps over which the learning rate rises from 0."""

    def __post_init__(self) -> None:
        check_at_least(0, "optimiser: ", self, "weight_decay", "warmup_steps")
        check_above_0("optimiser: ", self, "learning_rate", "max_abs_update")


@dataclass(frozen=True)
class TrainConfig:
    """Train an agent with an update rule."""

    task: str = "catch"
    """Environment, such as catch, gym:CartPole-v1 or ale:Pong; 'discorl envs' lists them all."""
    rule: Common[str] = "auto"
    """Update rule: disco103, cmpo, actor-critic, policy-gradient, the name of a rule that ships
    with discorl, or the path to a rule file. auto uses the best one on this machine."""
    steps: Common[int] = 1000
    """Training steps. Each one acts for --rollout-length steps in every environment and
    then makes --updates-per-step updates."""
    env_steps: Common[int | None] = None
    """Environment steps, in all copies together, instead of --steps, which is then as many as it
    takes to get there."""
    seed: Common[int] = 0
    """Two runs with the same seed on the same machine are identical, bit for bit."""
    device: Common[str] = "auto"
    """cpu, cuda, mps, or auto for the fastest one available."""
    threads: int | Literal["auto"] = "auto"
    """How many threads torch uses. auto times real steps, at the start and again when they slow
    down, and picks the fastest; small networks get one. It never uses more than OMP_NUM_THREADS."""
    out: Common[Path | None] = None
    """Folder for the run; by default a new one in runs/."""
    preset: Common[Literal["small", "paper"]] = "small"
    """Where the defaults of the other settings come from: small suits one machine, paper is the
    scale of the publication. Only benchmark suites have both."""

    num_envs: Common[int] = 2
    """How many copies of the environment to run."""
    rollout_length: int = 29
    """Time steps in a trajectory."""
    batch_size: int = 64
    """Trajectories in each update."""
    replay_capacity: int = 1024
    """Trajectories kept for replay, first in first out."""
    replay_transitions: int = 0
    """Time steps kept for replay, instead of --replay-capacity; 0 to use that."""
    replay_share: float = 1.0
    """Share of a batch drawn from the whole replay; the rest comes from the newest rollout."""
    frame_stack: int = 1
    """Frames in an observation, if the environment stacks them; the replay stores each one once."""
    burn_in: int = 0
    """First steps of a trajectory, which warm up a recurrent network and stay out of the loss."""
    updates_per_step: int = 1
    """Updates after each rollout."""
    estimate_values: bool = False
    """Let values begin at what the first rollouts suggest, their mean reward / (1 - discount x
    share of steps after which the episode goes on), and not at what a new network says. It can
    help where every step costs or pays."""
    mask_episode_starts: bool | None = None
    """Leave the first step of each episode out of the loss; the default is what the rule was
    made with: Disco103 leaves it out, and so do actor-critic and policy-gradient. Turn this off if
    episodes are only a step or two long, or the first action would never be learnt."""

    kernels: Literal["auto", "on", "off"] = "auto"
    """Learn with our own kernels in C++, on the CPU. auto uses them if there is a C++ compiler,
    which then takes ten to twenty seconds the first time on a machine, unless DISCORL_KERNELS is
    off. They round differently from torch; a run that is resumed keeps to what it began with."""
    precision: Literal["float32", "bf16"] = "float32"
    """bf16 rounds the factors of large matrix products to bfloat16, if that is faster on this
    machine, and else says that it does not. Sums, and everything else, stay float32. Only for
    learning with a given rule: discovery needs float32."""
    compile: bool = False
    """Also compile the many small operations of learning with torch.compile: it takes a minute to
    start, then steps are a little faster. Needs a C++ compiler; without one, training runs
    uncompiled."""
    log_every: int = 10
    """Training steps between lines of metrics.jsonl."""
    log: Common[str] = ""
    """Where metrics go besides metrics.jsonl: tensorboard, wandb, or both (tensorboard,wandb)."""
    eval_every: Common[int] = 0
    """Training steps between evaluations, which play whole episodes on environments of their own
    and keep the best agent, best.npz; 0 for none."""
    eval_episodes: int = 20
    """Episodes of an evaluation, with each policy."""
    eval_policy: Literal["both", "sampled", "greedy"] = "both"
    """Evaluate with sampled actions, with the likeliest ones, or with both; of both, the sampled
    ones decide which agent is the best."""
    stop_at_return: float | None = None
    """End the run when its mean return reaches this: that of an evaluation, or without --eval-every
    that of the last episodes in training, which 'return' in metrics.jsonl shows."""
    max_minutes: float | None = None
    """End the run after so many minutes, with those before it was resumed."""
    max_loss: float = 1e6
    """Stop the run if the loss is NaN or larger than this, and keep the state from before."""
    timeout_minutes: float = 10.0
    """How long to wait for another process or an environment of --workers async: one that hangs or
    was stopped ends the run, which keeps what it has."""
    progress: Literal["auto", "bar", "lines", "none"] = "auto"
    """How to show progress; auto draws a bar on a terminal and prints lines elsewhere."""

    env: EnvConfig = field(default_factory=EnvConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    net: NetConfig = field(default_factory=NetConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    returns: ReturnSettings = field(default_factory=ReturnSettings)
    disco: DiscoSettings = field(default_factory=DiscoSettings)
    cmpo: CMPOSettings = field(default_factory=CMPOSettings)
    actor_critic: ActorCriticSettings = field(default_factory=ActorCriticSettings)
    policy_gradient: PolicyGradientSettings = field(default_factory=PolicyGradientSettings)

    def __post_init__(self) -> None:
        check_at_least(1, "", self, "steps", "replay_capacity", "log_every")
        if self.env_steps is not None:
            check_at_least(1, "", self, "env_steps")
        at_once = ("num_envs", "batch_size", "updates_per_step", "frame_stack")
        check_at_least(1, "", self, *at_once, most=MAX_AT_ONCE)
        check_at_least(2, "", self, "rollout_length", most=MAX_AT_ONCE)
        if self.env_steps is not None:
            # From Python, 1e6 of them are as good as 1000000.
            steps = -(-int(self.env_steps) // self.env_steps_per_step)
            object.__setattr__(self, "steps", steps)
        check_at_least(0, "", self, "replay_transitions")
        check_shares("", self, "replay_share")
        log_names(self.log)
        check_threads(self.threads)
        check_timeout(self.timeout_minutes)
        check_at_least(0, "", self, "eval_every")
        check_at_least(1, "", self, "eval_episodes")
        if self.stop_at_return is not None:
            check_numbers("", self, "stop_at_return")
        if self.max_minutes is not None:
            check_above_0("", self, "max_minutes")
        if not self.max_loss > 0:
            raise DiscorlError(f"max_loss must be above 0, not {self.max_loss}")
        if abs(self.seed) >= 2**60:
            raise DiscorlError(f"seed must be below 2^60, not {shown(self.seed)}")
        self._check_replay()
        if not 0 <= self.burn_in <= self.rollout_length - 2:
            raise DiscorlError(
                f"burn_in must leave one transition of the {self.rollout_length} steps in a "
                f"trajectory: it can be 0 to {self.rollout_length - 2}, not {self.burn_in}"
            )
        if self.optimiser.warmup_steps > self.steps * self.env_steps_per_step:
            raise DiscorlError(
                f"the learning rate warms up for {self.optimiser.warmup_steps} environment steps, "
                "longer than the run: raise --steps or lower --optimiser.warmup-steps"
            )

    def _check_replay(self) -> None:
        name = "replay_transitions" if self.replay_transitions else "replay_capacity"
        kept = self.replay_trajectories
        if kept < self.batch_size:
            raise DiscorlError(
                f"{name} {getattr(self, name)} ({kept} trajectories) is below batch_size "
                f"{self.batch_size}: learning would never start; raise {name} or lower batch_size"
            )
        if self.num_envs > kept:
            raise DiscorlError(f"num_envs is above {name} ({kept} trajectories): raise {name}")

    @property
    def env_steps_per_step(self) -> int:
        """Environment steps of one training step, in all copies."""
        return self.num_envs * self.rollout_length

    @property
    def reward_settings(self) -> dict[str, float | None]:
        """What the rewards in a replay depend on."""
        return {"scale": self.env.reward_scale, "clip": self.env.reward_clip}

    @property
    def replay_trajectories(self) -> int:
        """Trajectories that the replay holds."""
        if self.replay_transitions:
            return num_trajectories(self.replay_transitions, self.rollout_length)
        return self.replay_capacity

    @property
    def num_fresh(self) -> int:
        """Trajectories of a batch that come from the newest rollout: one or more, if any."""
        share = 1 - self.replay_share
        return max(1, round(share * self.batch_size)) if share > 0 else 0


MAY_CHANGE = (
    *("steps", "stop_at_return", "max_minutes", "max_loss"),
    *("optimiser.learning_rate", "env.reward_scale", "env.reward_clip"),
    *("checkpoint", "threads", "timeout_minutes", "device", "log", "progress", "out"),
    "rule",  # is compared by what is in its file, which may have moved
    *("kernels", "precision"),  # the run says what it had: not all machines have both
)
"""What may differ when a run is resumed."""
