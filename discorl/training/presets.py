"""Presets: functions that return a configuration, all of it overridable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from discorl.envs.registry import family
from discorl.envs.suites import default_settings
from discorl.errors import DiscorlError
from discorl.nets.meta_net import MetaNetSizes
from discorl.rules.actor_critic import ActorCriticSettings
from discorl.rules.built_in import ACTOR_CRITIC, CMPO_RULE, POLICY_GRADIENT
from discorl.rules.disco import DiscoRule
from discorl.rules.store import DISCO103, load_rule
from discorl.rules.values import ReturnSettings
from discorl.training.config import EnvConfig, NetConfig, OptimiserConfig, TrainConfig
from discorl.training.rule_choice import best_at_hand

PAPER_NET = NetConfig(
    torso=(768,),
    channels=(256, 384, 384, 256),
    dense=768,
    action_lstm=1024,
    head_hidden=(1024,),
)
"""The paper's Atari agent. The paper does not say what it used on ProcGen, Crafter, NetHack and
Sokoban; this is our choice for them too."""
SMALL_NET = NetConfig(torso=(128,), action_lstm=64, head_hidden=(64,))
SMALL_ENVS = 8
SMALL_AGENT: dict[str, Any] = {
    "num_envs": 16,
    "rollout_length": 16,
    "batch_size": 16,
    "replay_capacity": 128,
    "replay_share": 0.5,
    "updates_per_step": 4,
    "net": NetConfig(torso=(64, 64), action_lstm=32, head_hidden=(32,)),
}
"""How agents of small discovered rules learn: as in ``discorl discover suite``, with replay."""


def _row(
    optimiser: OptimiserConfig,
    discount: float,
    frame_stack: int,
    batch_size: int,
    replay_transitions: int,
    replay_share: float,
    rollout_length: int,
    env_steps: int = 200_000_000,
    net: NetConfig = PAPER_NET,
) -> TrainConfig:
    """One update for each rollout, with as many environments as a batch has fresh trajectories."""
    num_envs = max(1, round((1 - replay_share) * batch_size))
    return TrainConfig(
        preset="paper",
        steps=env_steps // (num_envs * rollout_length),
        num_envs=num_envs,
        rollout_length=rollout_length,
        batch_size=batch_size,
        replay_transitions=replay_transitions,
        replay_share=replay_share,
        frame_stack=frame_stack,
        net=net,
        optimiser=optimiser,
        returns=ReturnSettings(discount),
    )


PAPER = {
    "ale": _row(
        OptimiserConfig(3e-4, 1.0, 0.1, "cosine", 5_000_000), 0.997, 4, 96, 1_760_000, 0.95, 29
    ),
    "crafter": _row(
        OptimiserConfig(3e-4, 1.0, 0.3), 0.997, 32, 24, 400_000, 0.99, 29, env_steps=20_000_000
    ),
    "dmlab": _row(
        OptimiserConfig(5e-4, 1.0, 0.01, "cosine", 1_000_000),
        *(0.99, 1, 96, 220_000, 0.9, 100),
        # The network of the IMPALA paper with its LSTM, which the paper names for DMLab.
        net=NetConfig(torso_kind="impala", action_lstm=256, head_hidden=(256,), core_lstm=256),
    ),
    "nethack": _row(
        OptimiserConfig(1e-4, 0.3, 0.03, "cosine", 10_000_000),
        *(0.997, 4, 96, 1_760_000, 0.95, 29),
        # The encoder of glyphs has convolutions of its own.
        net=replace(PAPER_NET, channels=(64, 128, 128)),
    ),
    "procgen": _row(
        OptimiserConfig(3e-4, 1.0, 0.1, "cosine", 1_000_000), 0.997, 4, 192, 880_000, 0.9, 29
    ),
    "sokoban": _row(OptimiserConfig(3e-4, 1.0, 0.1, "cosine"), 0.997, 4, 96, 880_000, 0.9, 29),
}
"""The columns of the paper's Extended Data Table 6, transcribed and not checked against it.

The length of a run is not in that table; where the paper gives none, it is our choice."""


SMALL: dict[str, dict[str, Any]] = {
    "ale": {"net": replace(SMALL_NET, torso_kind="nature")},  # the fastest on a CPU
    "crafter": {"frame_stack": 4, "steps": 1_000_000 // (SMALL_ENVS * 29)},
    "dmlab": {
        "net": replace(SMALL_NET, torso_kind="impala", core_lstm=128),
        "rollout_length": 40,
        "steps": 500_000 // (SMALL_ENVS * 40),
    },
    # Recurrent, because it sees one screen at a time.
    "nethack": {"net": replace(SMALL_NET, core_lstm=128), "frame_stack": 1},
}
"""What the small agent of a suite has of its own."""


def gymnasium(task: str) -> TrainConfig:
    """Classic control and the like: more environments, a smaller network, many small updates.

    Chosen on CartPole and LunarLander with a seed that benchmarks/learning does not report. One
    update of 64 trajectories, as the reference's CartPole has it, learns later and costs as much.
    Values that begin at 0 help on boards, but Disco103 learns to land later with them.
    """
    return TrainConfig(
        task=task,
        steps=700,
        num_envs=16,
        batch_size=16,
        updates_per_step=4,
        net=NetConfig(torso=(128, 128), action_lstm=64, head_hidden=(64,)),
        optimiser=OptimiserConfig(learning_rate=3e-3),
    )


def dmlab(task: str) -> TrainConfig:
    """DMLab's images and sizes, for a task of any name."""
    return _small(task, "dmlab")


def minatar(task: str) -> TrainConfig:
    """MinAtar. The paper does not use it, so there is only a small preset, and it is ours."""
    return _boards(task, env_steps=1_000_000)


def minigrid(task: str) -> TrainConfig:
    """MiniGrid. The paper does not use it, so there is only a small preset, and it is ours."""
    return _boards(task, env_steps=500_000)


SMALL_ONLY: dict[str, Callable[[str], TrainConfig]] = {
    "dm_env": gymnasium,
    "gym": gymnasium,
    "minatar": minatar,
    "minigrid": minigrid,
}


def for_run(task: str, rule: str = "auto", preset: str = "small") -> TrainConfig:
    """What ``discorl train TASK --rule RULE`` starts from."""
    return replace(for_rule(for_task(task, preset), rule), rule=rule)


def for_rule(config: TrainConfig, rule: str) -> TrainConfig:
    """The preset with the settings that suit a rule.

    Rules whose sizes differ from Disco103's, including the package's own, get the network and the
    environments of ``discorl discover suite``, and four updates a step, with half of each batch
    replayed (data/disco-mini.md says why). Those with a prior learn as cmpo does. Disco103 keeps
    the settings of the task; so do the suites, whose networks are larger than any that a small rule
    has seen. Discount, weights and the like come from the rule's file, if they differ from
    Disco103's. The actor-critic has its own settings on Gymnasium's tasks and on small boards.
    """
    name = best_at_hand()[0] if rule == "auto" else rule
    if name == ACTOR_CRITIC:
        return _for_actor_critic(config)
    if name == CMPO_RULE:
        return _for_cmpo(config)
    if name in (DISCO103, POLICY_GRADIENT):
        return config
    return for_disco_rule(config, load_rule(name).rule)


def for_disco_rule(config: TrainConfig, rule: DiscoRule) -> TrainConfig:
    """The same for a discovered rule, which need not be in a file."""
    full = MetaNetSizes().limited_to(
        predictions=rule.sizes.has_predictions, lifetime=rule.sizes.has_lifetime
    )
    if rule.prior is not None:
        config = replace(_for_cmpo(config), returns=rule.returns)
    elif rule.sizes != full:
        config = _for_small_rule(config)
    if rule.returns != ReturnSettings():
        config = replace(config, returns=rule.returns)
    return replace(config, disco=rule.settings)


def _for_small_rule(config: TrainConfig) -> TrainConfig:
    prefix = _prefix(config.task)
    if prefix in {*PAPER, "minatar", "minigrid"}:
        return config
    steps = config.steps if prefix in SMALL_ONLY else 250
    rate = OptimiserConfig(learning_rate=1e-2)
    return replace(config, steps=steps, optimiser=rate, **SMALL_AGENT)


def _for_cmpo(config: TrainConfig) -> TrainConfig:
    """As a small discovered rule, but with eight updates a step.

    Chosen by ``python -m benchmarks.rule_trials.variants``, on tasks that the trials do not use.
    """
    small = _for_small_rule(config)
    updates = 8 if small is not config else config.updates_per_step
    return replace(small, updates_per_step=updates, returns=ReturnSettings(discount=0.99))


def _for_actor_critic(config: TrainConfig) -> TrainConfig:
    """What the small search of benchmarks/results/learning/tuning.md found best.

    Where returns are small, a plain value learns sooner than the reference's bins.
    """
    prefix = _prefix(config.task)
    if prefix not in SMALL_ONLY:
        return config
    optimiser = replace(config.optimiser, learning_rate=1e-3)
    own = ActorCriticSettings(entropy_cost=0.01)
    config = replace(config, replay_share=0.5, optimiser=optimiser, actor_critic=own)
    if prefix != "gym":
        return replace(config, actor_critic=replace(own, num_bins=None))
    net = replace(config.net, zero_values=True)
    return replace(
        config, replay_share=0.0, batch_size=config.num_envs, updates_per_step=1, net=net
    )


def for_task(task: str, preset: str = "small") -> TrainConfig:
    """The preset that a task starts from, chosen by what stands before the colon."""
    if preset not in ("small", "paper"):
        raise DiscorlError(f"no preset is called '{preset}': use small or paper")
    prefix = _prefix(task)
    if prefix in PAPER:
        return (_paper if preset == "paper" else _small)(task, prefix)
    if preset == "paper":
        raise DiscorlError(
            f"'{task}' has no paper preset; only {', '.join(PAPER)} do: remove --preset"
        )
    # The defaults are the reference's, of its evaluation on Catch.
    return SMALL_ONLY.get(prefix, TrainConfig)(task)


def _prefix(task: str) -> str:
    """What a preset is chosen by: what stands before the colon; gym for the user's functions."""
    prefix = task.partition(":")[0]
    return prefix if prefix in PAPER else family(task)  # dmlab has presets, but no tasks


def _paper(task: str, suite: str) -> TrainConfig:
    return replace(PAPER[suite], task=task, env=EnvConfig(suite=default_settings(task)))


def _small(task: str, suite: str) -> TrainConfig:
    """The paper's settings at a scale for one machine; what differs is our choice.

    A short run has more updates for each environment step, the highest of the paper's learning
    rates, and a short warm-up.
    """
    paper = _paper(task, suite)
    warmup_steps = min(10_000, paper.optimiser.warmup_steps)
    settings: dict[str, Any] = {
        "preset": "small",
        "steps": 500_000 // (SMALL_ENVS * paper.rollout_length),
        "num_envs": SMALL_ENVS,
        "batch_size": 16,
        "replay_transitions": 50_000,
        "replay_share": 0.75,
        "net": SMALL_NET,
        "optimiser": replace(paper.optimiser, learning_rate=5e-4, warmup_steps=warmup_steps),
    }
    return replace(paper, **settings | SMALL.get(suite, {}))


def _boards(task: str, env_steps: int) -> TrainConfig:
    """Small boards: a small network, many updates of small batches.

    How often Disco103 updates matters more than the size of its batches: on MinAtar Breakout it
    did better than chance after some 400 updates of 16 trajectories, while 260 of 32, at three
    fifths of the learning rate, had changed nothing. Values that begin at 0 made it learn
    sooner there, and at all on MiniGrid (a seed that benchmarks/learning does not report).
    """
    return TrainConfig(
        task=task,
        steps=env_steps // (SMALL_ENVS * 29),
        num_envs=SMALL_ENVS,
        batch_size=16,
        updates_per_step=4,
        replay_transitions=100_000,
        env=EnvConfig(suite=default_settings(task)),
        net=replace(SMALL_NET, dense=128, zero_values=True),
        optimiser=OptimiserConfig(learning_rate=5e-3),
    )
