"""How fast an agent acts on Atari, beside what the game and the network take alone.

    OMP_NUM_THREADS=1 python -m benchmarks.acting
    OMP_NUM_THREADS=1 python -m benchmarks.acting --task ale:Breakout --envs 32 --torso impala

Four jobs take turns, round after round, so that a slow minute of the machine slows all of them:

- ``bare``: ale-py's own vector environment, made as discorl makes it, under random actions.
- ``network``: the agent's policy on observations of the same shape, nothing else.
- ``acting``: ``collect_rollout``, as ``discorl train`` calls it: the network chooses, the games
  step, and what was seen becomes a rollout.
- ``kept``: the same, and then the rollout goes into a replay that keeps each frame once.

If acting cost nothing of its own, a step would take as long as one of ``bare`` and one of
``network`` together. The share is that time divided by the time of a step of ``acting``; the goal
is 80 %. It is computed from the medians; in brackets are the quartiles of the share of each round.
Writes a table and every timing to benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import commit, machine_facts
from discorl.agents.acting import act, begin
from discorl.agents.agent import Agent
from discorl.agents.network import Network, with_params
from discorl.agents.replay import Replay
from discorl.envs import suites
from discorl.envs.registry import make_env
from discorl.rules import ActorCritic
from discorl.training.build import make_agent
from discorl.training.config import TrainConfig
from discorl.training.presets import for_task
from discorl.types import Params, TimeStep

GOAL = 0.8
JOBS = ("bare", "network", "acting", "kept")


def bare(task: str, num_envs: int, num_steps: int) -> Callable[[], None]:
    """Steps of the vector environment alone."""
    suite = suites.find(task)
    assert suite is not None
    envs = suite.make(task, num_envs)
    envs.reset(seed=0)
    size = int(envs.single_action_space.n)  # type: ignore[attr-defined]
    actions = np.random.default_rng(0).integers(size, size=(num_steps, num_envs))

    def run() -> None:
        for t in range(num_steps):
            envs.step(actions[t])

    return run


def network(agent: Agent, params: Params, shown: Any, num_steps: int) -> Callable[[], None]:
    """The policy alone, as often as a rollout asks for it."""
    ones = torch.ones(len(shown))
    now = TimeStep(shown, ones, ones)

    def steps(net: Network) -> None:
        memory = net.initial_memory(len(shown))
        for _ in range(num_steps):
            _, memory = net.step(now, memory)

    def run() -> None:
        with torch.inference_mode():
            with_params(agent.net, params, steps)

    return run


def acting(
    agent: Agent, params: Params, task: str, num_envs: int, num_steps: int, replay: Replay | None
) -> Callable[[], None]:
    """Rollouts, one after the other."""
    env = make_env(task, num_envs)
    at = begin(agent.net, env, torch.Generator().manual_seed(0))

    def run() -> None:
        nonlocal at
        rollout, at = act(agent.net, params, env, at, num_steps, bootstrap=agent.rule)
        if replay is not None:
            replay.add(rollout)

    return run


def measure(
    runs: dict[str, Callable[[], None]], rounds: int, repeats: int
) -> dict[str, list[float]]:
    """Seconds of each job, ``repeats`` in a row each round, in an order that rotates."""
    for run in runs.values():
        run()
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            start = time.perf_counter()
            for _ in range(repeats):
                runs[name]()
            times[name].append((time.perf_counter() - start) / repeats)
    return times


def share(times: dict[str, float], job: str) -> float:
    """What of a job's time the game and the network take."""
    return (times["bare"] + times["network"]) / times[job]


def summary(times: dict[str, list[float]]) -> dict[str, Any]:
    """Medians, and the share with its quartiles over the rounds."""
    medians = {name: statistics.median(x) for name, x in times.items()}
    out: dict[str, Any] = {"median_seconds": medians}
    for job in ("acting", "kept"):
        each = [share(dict(zip(times, row)), job) for row in zip(*times.values())]
        low, _, high = statistics.quantiles(each, n=4)
        out[job] = {"share": share(medians, job), "quartiles": [low, high]}
    return out


def report(args: argparse.Namespace, times: dict[str, list[float]], facts: dict) -> str:
    """The table."""
    found = summary(times)
    per_round = args.envs * args.steps
    lines = [
        f"# Acting on {args.task}",
        "",
        f"{args.envs} environments, {args.steps} steps a rollout, {args.torso} network"
        + (f" with an LSTM core of {args.core}" if args.core else "")
        + f", {facts['threads']} thread(s) for torch; {args.rounds} interleaved rounds of "
        f"{args.repeats} rollouts; {facts['processor']}, {facts['cores']} cores, load "
        f"{facts['load']:.1f} at the start. Commit {facts['commit']}. Made by "
        f"`{facts['command']}`.",
        "",
        "| | steps/s | share of what game and network take alone |",
        "|---|---|---|",
    ]
    words = {
        "bare": "the game alone, random actions",
        "network": "the network alone",
        "acting": "acting (`collect_rollout`)",
        "kept": "acting, and keeping it in the replay",
    }
    for job in JOBS:
        speed = f"{per_round / found['median_seconds'][job]:,.0f}"
        cell = ""
        if job in found:
            low, high = found[job]["quartiles"]
            cell = f"{found[job]['share']:.0%} ({low:.0%} to {high:.0%})"
        lines.append(f"| {words[job]} | {speed} | {cell} |")
    met = "met" if found["acting"]["share"] >= GOAL else "not met"
    lines += ["", f"Goal: acting at {GOAL:.0%} or more: {met}."]
    return "\n".join(lines) + "\n"


def jobs(args: argparse.Namespace) -> dict[str, Callable[[], None]]:
    """What is timed, by name."""
    env = make_env(args.task, args.envs)
    _, first = env.reset(torch.Generator().manual_seed(0))
    net = replace(for_task(args.task).net, torso_kind=args.torso, core_lstm=args.core)
    agent = make_agent(TrainConfig(task=args.task, net=net), env.spec, ActorCritic())
    params = agent.init_state(torch.Generator().manual_seed(0)).params
    replay = Replay(40 * args.envs, frame_stack=4)
    return {
        "bare": bare(args.task, args.envs, args.steps),
        "network": network(agent, params, first.observation, args.steps),
        "acting": acting(agent, params, args.task, args.envs, args.steps, None),
        "kept": acting(agent, params, args.task, args.envs, args.steps, replay),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--task", default="ale:Pong", help="an Atari game")
    parser.add_argument("--envs", type=int, default=8, help="the small preset's number")
    parser.add_argument("--steps", type=int, default=29)
    parser.add_argument("--torso", default="nature", choices=("nature", "impala", "conv", "mlp"))
    parser.add_argument("--core", type=int, default=0, help="size of an LSTM core; 0 for none")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--name", default=time.strftime("%Y-%m-%d-acting"))
    args = parser.parse_args()
    facts: dict[str, Any] = machine_facts() | {
        "commit": commit(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "command": " ".join(["python -m benchmarks.acting", *sys.argv[1:]]),
    }
    times = measure(jobs(args), args.rounds, args.repeats)
    text = report(args, times, facts)
    print(text)
    results = Path(__file__).parent / "results"
    (results / f"{args.name}.md").write_text(text)
    content = {"facts": facts, "summary": summary(times), "seconds": times}
    (results / f"{args.name}.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
