"""Settings of a training run: frozen dataclasses, checked as they are made.

The text under a field is its help on the command line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from discorl.agents.replay import num_trajectories
from discorl.bounds import check_above_0, check_at_least, check_shares
from discorl.envs.env_config import EnvConfig
from discorl.errors import DiscorlError
from discorl.nets.net_config import NetConfig
from discorl.rules.actor_critic import ActorCriticSettings
from discorl.rules.disco import DiscoSettings
from discorl.rules.policy_gradient import PolicyGradientSettings
from discorl.rules.values import ReturnSettings
from discorl.runs.checkpoint import CheckpointConfig
from discorl.runs.metrics import log_names
from discorl.runs.threads import check_threads


@dataclass(frozen=True)
class OptimiserConfig:
    """Adam, then a clip of every element, then the learning rate."""

    learning_rate: float = 1e-2
    """Step size."""
    max_abs_update: float = 1.0
    """Clip after Adam, before the learning rate."""
    weight_decay: float = 0.0
    """Pulls parameters towards 0 by this much times the learning rate, beside Adam (decoupled)."""
    schedule: Literal["constant", "cosine"] = "constant"
    """What the learning rate does after the warm-up: stay, or fall to 0 at the end of the run."""
    warmup_steps: int = 0
    """Environment steps over which the learning rate rises from 0."""

    def __post_init__(self) -> None:
        check_at_least(0, "optimiser: ", self, "weight_decay", "warmup_steps")
        check_above_0("optimiser: ", self, "learning_rate", "max_abs_update")


@dataclass(frozen=True)
class TrainConfig:
    """Train an agent with an update rule."""

    task: str = "catch"
    """Environment, such as catch, gym:CartPole-v1 or ale:Pong; 'discorl envs' lists all."""
    rule: str = "auto"
    """Update rule: disco103, actor-critic, policy-gradient, the name of a rule that ships with
    discorl, or the path of a rule file. auto takes the best one that is on this machine."""
    steps: int = 1000
    """Training steps: each acts for rollout_length steps in every environment, then makes
    updates_per_step updates."""
    seed: int = 0
    """Two runs with the same seed on the same machine are equal to the last bit."""
    device: str = "auto"
    """cpu, cuda, mps, or auto for the fastest that is there."""
    threads: int | Literal["auto"] = "auto"
    """Threads that torch computes with. auto times real steps, at the start and again when they
    become slow, and takes the fastest; small networks get one. OMP_NUM_THREADS is the most."""
    out: Path | None = None
    """Folder of the run; by default a new one below runs/."""
    preset: Literal["small", "paper"] = "small"
    """Where the defaults of the other settings come from: small suits one machine, paper has the
    scale of the publication. Only benchmark suites have both."""

    num_envs: int = 2
    """Copies of the environment."""
    rollout_length: int = 29
    """Time steps of a trajectory."""
    batch_size: int = 64
    """Trajectories in an update."""
    replay_capacity: int = 1024
    """Trajectories kept for replay, first in first out."""
    replay_transitions: int = 0
    """Time steps kept for replay, in place of replay_capacity; 0 to go by that."""
    replay_share: float = 1.0
    """Share of a batch that is drawn from the whole replay; the rest is of the newest rollout."""
    frame_stack: int = 1
    """Frames in an observation, where the environment stacks them; the replay keeps each once."""
    burn_in: int = 0
    """First steps of a trajectory that only warm up a recurrent network and are not learnt from."""
    updates_per_step: int = 1
    """Updates after each rollout."""
    mask_episode_starts: bool | None = None
    """Leave the first step of each episode out of the loss; by default as the rule was discovered:
    Disco103 masks them, as do the baselines. Switch it off where episodes are a step or two long:
    the first action would never be learnt from."""

    compile: bool = False
    """Compile the many small operations of learning with torch.compile, and on the CPU use kernels
    of our own for the network: a minute to start, then faster steps. Needs a C++ compiler; goes on
    without if there is none."""
    log_every: int = 10
    """Training steps between two lines of metrics.jsonl."""
    log: str = ""
    """Where metrics go besides metrics.jsonl: tensorboard, wandb, or both with a comma."""
    max_loss: float = 1e6
    """The run stops when the loss is NaN or beyond this, and keeps the state from before."""
    progress: Literal["auto", "bar", "lines", "none"] = "auto"
    """How progress is shown; auto draws a bar on a terminal and prints lines elsewhere."""

    env: EnvConfig = field(default_factory=EnvConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    net: NetConfig = field(default_factory=NetConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    returns: ReturnSettings = field(default_factory=ReturnSettings)
    disco: DiscoSettings = field(default_factory=DiscoSettings)
    actor_critic: ActorCriticSettings = field(default_factory=ActorCriticSettings)
    policy_gradient: PolicyGradientSettings = field(default_factory=PolicyGradientSettings)

    def __post_init__(self) -> None:
        counts = ("steps", "num_envs", "batch_size", "replay_capacity", "frame_stack")
        check_at_least(1, "", self, *counts, "updates_per_step", "log_every")
        check_at_least(0, "", self, "replay_transitions")
        check_shares("", self, "replay_share")
        log_names(self.log)
        check_threads(self.threads)
        if not self.max_loss > 0:
            raise DiscorlError(f"max_loss must be above 0, not {self.max_loss}")
        if abs(self.seed) >= 2**60:
            raise DiscorlError(f"seed must be below 2^60, not {self.seed}")
        if self.rollout_length < 2:
            raise DiscorlError(
                f"rollout_length must be at least 2 (a transition), not {self.rollout_length}"
            )
        self._check_replay()
        if not 0 <= self.burn_in <= self.rollout_length - 2:
            raise DiscorlError(
                f"burn_in must leave a transition of the {self.rollout_length} steps of a "
                f"trajectory, so 0 to {self.rollout_length - 2}, not {self.burn_in}"
            )
        if self.optimiser.warmup_steps > self.steps * self.num_envs * self.rollout_length:
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
                f"{self.batch_size}: learning would never begin; raise the one or lower the other"
            )
        if self.num_envs > kept:
            raise DiscorlError(f"num_envs is above {name} ({kept} trajectories): raise {name}")

    @property
    def replay_trajectories(self) -> int:
        """Trajectories that the replay holds."""
        if self.replay_transitions:
            return num_trajectories(self.replay_transitions, self.rollout_length)
        return self.replay_capacity

    @property
    def num_fresh(self) -> int:
        """Trajectories of a batch that are of the newest rollout: one or more, if any."""
        share = 1 - self.replay_share
        return max(1, round(share * self.batch_size)) if share > 0 else 0
