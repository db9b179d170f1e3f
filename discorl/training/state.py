"""Everything that changes in a training run, and how it gets into a checkpoint and back."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from discorl import tree
from discorl.agents.acting import Acting, act
from discorl.agents.agent import Agent
from discorl.agents.replay import Replay
from discorl.envs.base import Env
from discorl.errors import DiscorlError
from discorl.runs import distributed
from discorl.runs.checkpoint import restore
from discorl.runs.distributed import Ranks
from discorl.training.agent_files import KIND
from discorl.training.build import make_replay
from discorl.training.checkup import Seen
from discorl.training.config import TrainConfig
from discorl.training.stats import EpisodeStats, UpdateStats
from discorl.types import AgentState, Memory, TimeStep

SHARED = ("step", "seconds", "agent", "updates", "seen")
"""Fields that are the same in all processes; the others are each process's own."""


class EnvMemory:
    """What an environment learns as it goes, such as the scale of its observations; often nothing.

    Environments on tensors have none: all that changes is in their state.
    """

    def __init__(self, env: Env) -> None:
        self._env = env
        self.is_ahead = False
        """Whether a step was begun that is not in the rest of the state."""

    def state_dict(self) -> dict[str, Any]:
        return getattr(self._env, "state_dict", dict)()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._env.load_state_dict(state)  # pyright: ignore[reportAttributeAccessIssue]

    def recording(self) -> list[dict[str, Any]] | None:
        """The episodes that are being played, if they can be played again."""
        if self.is_ahead:
            return None
        return getattr(self._env, "recording", lambda: None)()

    def replay(self, recording: Any) -> str | None:
        """Play them again; says what went differently, or nothing. None if none are recorded."""
        if recording is None or self.recording() is None:
            return None
        return self._env.replay(recording)  # pyright: ignore[reportAttributeAccessIssue]


@dataclass
class TrainState:
    """Everything that changes. A field added here is saved and restored like the others."""

    step: int
    """Training steps done."""
    seconds: float
    """Time they took."""
    agent: AgentState
    env_state: Any
    timestep: TimeStep
    core_state: Memory
    """Of a recurrent agent, as it acts."""
    act_rng: torch.Generator
    sample_rng: torch.Generator
    env_memory: EnvMemory
    replay: Replay
    episodes: EpisodeStats
    updates: UpdateStats
    seen: Seen

    @property
    def acting(self) -> Acting:
        """Where the next rollout begins."""
        return Acting(self.env_state, self.timestep, self.act_rng, self.core_state)

    @acting.setter
    def acting(self, at: Acting) -> None:
        self.env_state, self.timestep, self.core_state = at.env_state, at.timestep, at.memory


def new_state(config: TrainConfig, agent: Agent, env: Env, ranks: Ranks) -> TrainState:
    """The beginning of a run."""
    # One stream of random numbers for each purpose, so that none of them affects the others.
    init_rng = torch.Generator().manual_seed(config.seed * 3)
    act_rng, sample_rng = (
        torch.Generator(device=d).manual_seed(ranks.seed(config.seed * 3 + i))
        for i, d in ((1, ranks.device), (2, torch.device("cpu")))
    )
    env_state, timestep = env.reset(act_rng)
    newborn = agent.init_state(init_rng, ranks.device)
    if ranks.size > 1:  # machines may differ in the last bits
        newborn = restore(newborn, distributed.broadcast(newborn))
    return TrainState(
        step=0,
        seconds=0.0,
        agent=newborn,
        env_state=env_state,
        timestep=timestep,
        core_state=agent.initial_memory(env.num_envs, ranks.device),
        act_rng=act_rng,
        sample_rng=sample_rng,
        env_memory=EnvMemory(env),
        replay=make_replay(config, ranks),
        episodes=EpisodeStats(env.spec, env.num_envs),
        updates=UpdateStats(),
        seen=Seen(),
    )


def snapshot(state: TrainState, reward_settings: dict[str, float | None]) -> dict[str, Any] | None:
    """The tree for a checkpoint, gathered in the first process; None in the others.

    ``reward_settings`` are those that the replay's rewards were made with.
    """
    parts = {
        f.name: part.state_dict() if hasattr(part, "state_dict") else part
        for f in dataclasses.fields(state)
        for part in [getattr(state, f.name)]
    }
    own = {name: part for name, part in parts.items() if name not in SHARED}
    if (recording := state.env_memory.recording()) is not None:
        own |= {"recording": recording, "timestep": _settled(state.timestep)}
    everyones = distributed.gather(own)
    if everyones is None:
        return None
    shared = {name: parts[name] for name in SHARED} | {"reward_settings": reward_settings}
    return {"kind": KIND, "shared": shared, "processes": everyones}


def _settled(timestep: TimeStep) -> TimeStep:
    """What the next step needs of a time step, which always has the same parts.

    Whether an episode was cut off there matters only to its reward, which is complete.
    """
    raw = timestep.reward if timestep.raw_reward is None else timestep.raw_reward
    return dataclasses.replace(timestep, truncated=None, final_observation=None, raw_reward=raw)


class Restored(NamedTuple):
    """What could be restored; the rest started over."""

    environments: bool
    replay: bool
    disagreement: str = ""
    """What recorded environments did differently as their episodes were played again."""


def restore_state(
    state: TrainState,
    loaded: dict[str, Any] | None,
    agent: Agent,
    env: Env,
    config: TrainConfig,
    before: TrainConfig,
    skip_replay: bool = False,
) -> Restored:
    """Set a new run's state to a checkpoint's, which only the first process needs to have.

    A replay is left out if asked for, or if its rewards were made with other settings; early
    versions did not save those, but they are the ones from ``before``.
    """
    own = _distribute(loaded)
    rewards = own.get("reward_settings", before.reward_settings)
    has_replay = not skip_replay and rewards == config.reward_settings
    is_filled = own["replay"]["storage"] is not None  # unless the first step failed
    begun_anew = ()
    if has_replay and is_filled:
        # Acting for one rollout shows what the replay stores; nothing of it is kept.
        scratch = torch.Generator(device=state.act_rng.device).manual_seed(0)
        start = dataclasses.replace(state.acting, rng=scratch)
        rollout, _ = act(agent.net, state.agent.params, env, start, config.rollout_length)
        state.replay.add(rollout)
    else:
        begun_anew = ("replay",)
    differs = state.env_memory.replay(own.get("recording"))
    is_exact = bool(tree.leaves(state.env_state)) or differs == ""
    begun_anew = begun_anew if is_exact else (*begun_anew, "env_state", "timestep")
    state.timestep = state.timestep if differs is None else _settled(state.timestep)
    for f in dataclasses.fields(state):
        part = getattr(state, f.name)
        if f.name in begun_anew:
            continue
        if isinstance(part, Seen):
            if f.name in own:  # early versions had nothing of the kind
                part.load_state_dict(own[f.name], state.agent.params)
            continue
        if f.name not in own:
            raise DiscorlError(f"the checkpoint has no {f.name}: another discorl version wrote it")
        if isinstance(part, EnvMemory | EpisodeStats | UpdateStats):
            part.load_state_dict(own[f.name])
        elif isinstance(part, Replay):
            part.load_state_dict(restore(part.state_dict(), own[f.name], f.name))
        else:
            setattr(state, f.name, restore(part, own[f.name], f.name))
    if not is_exact:
        state.env_state, state.timestep = env.reset(state.act_rng)
        state.core_state = agent.initial_memory(env.num_envs, state.act_rng.device)
        state.episodes.restart()
    return Restored(is_exact, has_replay, differs or "")


def _distribute(loaded: dict[str, Any] | None) -> dict[str, Any]:
    """The part of a checkpoint that this process needs."""
    shares = None
    if loaded is not None:
        if not isinstance(loaded, dict) or loaded.get("kind") != KIND:
            raise DiscorlError(f"the checkpoint is not from '{KIND}'")
        shares = [loaded["shared"] | own for own in loaded["processes"]]
    return distributed.scatter(shares)
