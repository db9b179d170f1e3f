"""discorl itself."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.flops import products_of, replay_products, square_product
from benchmarks.worker import (
    CAPACITY,
    COLUMNS,
    ENV_BATCH,
    ENV_STEPS,
    LEARNING_RATE,
    NUM_ENVS,
    PIXELS,
    ROWS,
    SUITE_CATCH,
    B,
    Job,
    T,
    serve,
)
from discorl.agents.acting import act as one_rollout
from discorl.agents.agent import Agent, adam_clip, agent_net, mlp_agent_net
from discorl.agents.compiled import CompiledRule, compile_agent
from discorl.agents.replay import Replay
from discorl.agents.update import update_agent
from discorl.discovery.build import make_group, starting_rule
from discorl.discovery.config import DiscoverConfig
from discorl.discovery.presets import notebook, suite
from discorl.envs.tasks.catch import Catch
from discorl.meta.crew import Crew
from discorl.meta.meta_step import init_discovery
from discorl.meta.meta_step import meta_step as one_meta_step
from discorl.own_agent import collect_rollout
from discorl.rules.store import load_rule
from discorl.runs.distributed import Ranks
from discorl.runs.malloc import keep_freed_memory
from discorl.training.config import NetConfig
from discorl.training.presets import for_task
from discorl.training.train import Training
from discorl.types import AgentState, EnvSpec, Params, Rollout

COMPILE = "--compile" in sys.argv[1:]
PLAIN = "--plain" in sys.argv[1:]
"""Without our kernels, as where there is no compiler."""
BF16 = "--bf16" in sys.argv[1:]
"""With the factors of large products rounded to bfloat16."""


def make_agent(num_actions: int, kernels: bool = not PLAIN) -> tuple[Agent, Params, AgentState]:
    loaded = load_rule("disco103")
    net = mlp_agent_net(EnvSpec((ROWS, COLUMNS), num_actions), loaded.rule)
    bf16 = BF16 and kernels
    agent = Agent(net, loaded.rule, adam_clip(LEARNING_RATE), native=kernels, bf16=bf16)
    if COMPILE:
        agent = compile_agent(agent)
    return agent, loaded.params, agent.init_state(torch.Generator().manual_seed(0))


def random_rollout(num_actions: int, batch: int, length: int) -> Rollout:
    g = torch.Generator().manual_seed(0)
    shape = (length, batch)
    return Rollout(
        observations=torch.randn(*shape, ROWS, COLUMNS, generator=g),
        actions=torch.randint(num_actions, shape, generator=g),
        rewards=torch.randn(shape, generator=g),
        discounts=(torch.rand(shape, generator=g) > 0.1).float(),
        behaviour_logits=torch.randn(*shape, num_actions, generator=g),
    )


def learn(num_actions: int = 3, batch: int = B, length: int = T) -> Job:
    """One update on a rollout that stays the same."""
    agent, rule_params, state = make_agent(num_actions)
    rollout = random_rollout(num_actions, batch, length)

    def step() -> None:
        nonlocal state
        state, _ = update_agent(agent, rule_params, state, rollout)

    return Job(step)


def train(kernels: bool = not PLAIN) -> Job:
    """Act, remember, sample, learn."""
    agent, rule_params, state = make_agent(3, kernels)
    rng = torch.Generator().manual_seed(0)
    env, replay = Catch(NUM_ENVS, ROWS, COLUMNS), Replay(CAPACITY)
    env_state, timestep = env.reset(rng)

    def step() -> None:
        nonlocal state, env_state, timestep
        with agent.acting():
            rollout, env_state, timestep = collect_rollout(
                agent.net, state.params, env, env_state, timestep, T, rng
            )
        replay.add(rollout)
        if len(replay) >= B:
            state, _ = update_agent(agent, rule_params, state, replay.sample(B, rng))

    while len(replay) < B:
        step()
    return Job(step)


def learn_pixels(is_impala: int = 0) -> Job:
    """One update of an Atari agent of laptop size on a rollout that stays the same."""
    loaded = load_rule("disco103")
    config = NetConfig(
        action_lstm=PIXELS.hidden,
        head_hidden=(PIXELS.hidden,),
        torso_kind="impala" if is_impala else "nature",
        dense=PIXELS.dense,
    )
    net = agent_net(EnvSpec(PIXELS.shape, PIXELS.actions, is_image=True), loaded.rule, config)
    optimiser = adam_clip(PIXELS.learning_rate)
    agent = Agent(net, loaded.rule, optimiser, native=not PLAIN, bf16=BF16)
    state = agent.init_state(torch.Generator().manual_seed(0))
    rollout = random_rollout(PIXELS.actions, PIXELS.batch, T)
    pixels = torch.randint(256, (T, PIXELS.batch, *PIXELS.shape), dtype=torch.uint8)
    rollout = replace(rollout, observations=pixels)

    def step() -> None:
        nonlocal state
        state, _ = update_agent(agent, loaded.params, state, rollout)

    return Job(step)


def meta_step() -> Job:
    """All agents act and learn, and the rule follows the gradient through what they learnt."""
    return discovery_step(notebook())


def discover_suite(kernels: bool = True) -> Job:
    """The same for the preset suite: four groups of 24 or 32 small agents, five updates each."""
    return discovery_step(suite(), kernels)


def discover_catch(kernels: bool = True) -> Job:
    """The suite's agents on Catch alone, for ever, on the board that the reference has.

    They are in as many groups as there are threads.
    """
    return discovery_step(catch_of_suite(torch.get_num_threads()), kernels)


def catch_of_suite(num_groups: int = 1) -> DiscoverConfig:
    num_agents, rest = divmod(SUITE_CATCH.agents, num_groups)
    if rest:
        raise ValueError(f"{SUITE_CATCH.agents} agents do not make {num_groups} equal groups")
    task = f"catch:{SUITE_CATCH.board}x{SUITE_CATCH.board}*{num_agents}"
    return replace(suite(), tasks=(task,) * num_groups, lifetimes=())


def discovery_step(config: DiscoverConfig, kernels: bool = True) -> Job:
    config = replace(config, kernels="on" if kernels else "off")
    rule, params = starting_rule(config)
    groups = [make_group(config, g, rule, torch.device("cpu")) for g in config.groups]
    generators = [torch.Generator().manual_seed(i) for i, _ in enumerate(groups)]
    optimiser = config.meta_optimiser
    discovery, crew = init_discovery(groups, params, optimiser, generators), Crew()

    def step() -> None:
        nonlocal discovery
        discovery, _ = one_meta_step(groups, discovery, optimiser, generators, crew=crew)

    num_agents = sum(group.num_agents for group in groups)
    return Job(step, {"units": num_agents * config.window.num_updates})


def act(num_envs: int = NUM_ENVS, task: str = "catch") -> Job:
    """A rollout, without learning, by an agent of the task's preset."""
    training = begin_training(task, num_envs)
    agent, at = training.agent, training.state.acting

    def rollout() -> None:
        nonlocal at
        with agent.acting():
            params = training.state.agent.params
            _, at = one_rollout(agent.net, params, training.env, at, T, bootstrap=agent.rule)

    return Job(rollout)


def run(task: str) -> Job:
    """A step of ``discorl train`` with Disco103 and the task's preset, in the middle of a run."""
    training = begin_training(task)
    units = training.config.env_steps_per_step
    return Job(lambda: training.step(Path()), {"units": units})


def begin_training(task: str, num_envs: int | None = None) -> Training:
    """What ``discorl train`` does before its first step, and its steps without updates."""
    config = replace(
        for_task(task),
        task=task,
        rule="disco103",
        kernels="off" if PLAIN else "on",
        precision="bf16" if BF16 else "float32",
        compile=COMPILE,
    )
    if num_envs:
        capacity = max(config.replay_capacity, num_envs)
        config = replace(config, num_envs=num_envs, replay_capacity=capacity)
    training = Training(config, Ranks(0, 1, torch.device("cpu")))
    training.begin()
    while not num_envs and len(training.state.replay) < config.batch_size:
        training.step(Path())
    return training


def env_steps() -> Job:
    """Many environments at once under random actions; nobody acts or learns."""
    rng = torch.Generator().manual_seed(0)
    env = Catch(ENV_BATCH, ROWS, COLUMNS)
    start, _ = env.reset(rng)
    actions = torch.randint(3, (ENV_STEPS, ENV_BATCH), generator=rng)

    def unroll() -> None:
        state = start
        for action in actions:
            state, _ = env.step(state, action, rng)

    return Job(torch.inference_mode()(unroll))


def replay_sample() -> Job:
    """A batch from a full replay."""
    rng, replay = torch.Generator().manual_seed(0), Replay(CAPACITY)
    rollout = random_rollout(3, CAPACITY, T)
    replay.add(rollout)
    fields = (
        rollout.observations,
        rollout.actions.int(),
        rollout.rewards,
        rollout.discounts,
        rollout.behaviour_logits,
    )
    needed = sum(x.numel() * x.element_size() for x in fields)
    transitions = CAPACITY * T
    figures = {
        "bytes_per_transition": replay.num_bytes / transitions,
        "needed_bytes_per_transition": needed / transitions,
    }
    return Job(lambda: replay.sample(B, rng), figures)


def matmul(by_kernel: int = 0) -> Job:
    """The matrix products of one training step, alone."""
    flops, products = products_of(train(kernels=False).run)  # torch does not see our kernels'
    return Job(replay_products(products, bool(by_kernel)), {"flop": flops})


def discover_matmul(catch: int = 0) -> Job:
    """The matrix products of one step of discovery, alone."""
    job = (discover_catch if catch else discover_suite)(kernels=False)  # torch sees only its own
    flops, products = products_of(job.run)
    return Job(replay_products(products), {"flop": flops})


def matmul_square(size: int = 2048) -> Job:
    """One large square product, which the machine does best."""
    return Job(square_product(size), {"flop": 2 * size**3})


if __name__ == "__main__":
    keep_freed_memory()  # as every run of discorl does
    learning = (train, learn, act, run) if COMPILE else (train, learn, act, run, learn_pixels)
    rest = (meta_step, discover_suite, discover_catch, env_steps, replay_sample)
    machine = (matmul, discover_matmul, matmul_square)
    facts: dict[str, object] = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    if COMPILE or PLAIN or BF16:
        agent, _, _ = make_agent(3)
        facts |= {"torch.compile": isinstance(agent.rule, CompiledRule), "kernels": agent.native}
        facts["bf16"] = agent.bf16
        rest = machine = ()  # which do not depend on the options
    serve({w.__name__: w for w in (*learning, *rest, *machine)}, facts)
