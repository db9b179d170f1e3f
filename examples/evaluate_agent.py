"""Use a trained agent: score it over whole episodes, then act with it step by step.

discorl train catch --out runs/catch-1
python examples/evaluate_agent.py runs/catch-1

The first part, on the command line: discorl evaluate runs/catch-1 --greedy --video episode.gif
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

import discorl
from discorl.training.evaluate import print_evaluation


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--task", help="its environment, if it was given from Python")
    parser.add_argument("--episodes", type=int, default=100)
    args = parser.parse_args()

    agent = discorl.load_agent(args.run, env=args.task)
    print(f"an agent for {agent.config.task}, trained with {agent.rule_name}")
    for greedy in (False, True):
        # Each seed plays this many episodes; the interval is over episodes, not training seeds.
        result = discorl.evaluate(agent, args.episodes, seeds=(0, 1), greedy=greedy)
        print_evaluation(result, Console())

    # Acting step by step: ``at`` holds all that the next step needs, memory included.
    env = agent.make_env(num_envs=1)
    at = agent.begin(env, seed=0)
    actions, reward = [], 0.0
    while True:
        action, at = agent.step(env, at, greedy=True)
        actions.append(int(action))
        reward += float(at.timestep.reward)
        if bool(at.timestep.ended):
            break
    print(f"one episode: actions {actions}, return {reward:.2f}")


if __name__ == "__main__":
    main()
