"""Your own torso: any nn.Module from observations to an embedding; the heads are the rule's.

python examples/own_torso.py                  # Catch with Disco103 and a small convolution
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import discorl
from discorl.envs.tasks.catch import Catch


class BoardTorso(nn.Module):
    """A convolution over Catch's board [N, rows, columns]."""

    embedding_size = 128  # the heads need to know this

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.LazyLinear(self.embedding_size),
        )
        self.layers(torch.zeros(1, 1, 8, 8))  # lets the lazy layer find its size

    def forward(self, observation: Tensor) -> Tensor:
        return self.layers(observation.unsqueeze(1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rule", default="disco103", help="name or file of a rule")
    parser.add_argument("--steps", type=int, default=600)
    args = parser.parse_args()

    loaded = discorl.load_rule(args.rule)
    rule, rule_params = loaded.rule, loaded.params
    env = Catch(num_envs=2)
    sizes = discorl.NetConfig(action_lstm=64, head_hidden=(64,))  # what sits on top of the torso
    net = discorl.agent_net(env.spec, rule, sizes, torso=BoardTorso())
    agent = discorl.Agent(net, rule, discorl.adam_clip(0.01))

    rng = torch.Generator().manual_seed(0)
    state = agent.init_state(rng)
    env_state, timestep = env.reset(rng)
    replay = discorl.Replay(capacity=1024)
    caught: list[bool] = []
    for step in range(1, args.steps + 1):
        rollout, env_state, timestep = discorl.collect_rollout(
            agent.net, state.params, env, env_state, timestep, num_steps=29, generator=rng
        )
        replay.add(rollout)
        caught += (rollout.rewards[rollout.ended] > 0).tolist()
        if len(replay) >= 64:
            # Pure: the old state is untouched, and there is no optimiser to zero.
            batch = replay.sample(64, rng)
            state, info = discorl.update_agent(agent, rule_params, state, batch)
            if step % 50 == 0 or step == args.steps:
                recent = caught[-300:]
                rate = sum(recent) / len(recent)
                print(f"step {step}: catch rate {rate:.0%}, loss {info.loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
