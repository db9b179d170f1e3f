"""Everything is yours, loop and optimiser included. The rule only says what to learn.

python examples/own_loop.py                # CartPole with Disco103, a GRU and AdamW

This shows the moving parts. It is not tuned, and leaves out the replay that DiscoTrainer has.
"""

from __future__ import annotations

import argparse

import gymnasium
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor, nn

import discorl

NUM_ENVS, NUM_STEPS = 16, 29


class Recurrent(nn.Module):
    """An agent with memory: ``forward`` takes a state and returns the next one."""

    def __init__(self, num_inputs: int, num_actions: int, rule: discorl.DiscoUpdateRule) -> None:
        super().__init__()
        heads = rule.heads(num_actions)
        shapes = {name: (size,) for name, size in heads.flat.items()}
        shapes |= {name: (num_actions, size) for name, size in heads.per_action.items()}
        self.shapes = shapes
        self.encoder = nn.Linear(num_inputs, 64)
        self.memory = nn.GRUCell(64, 64)
        self.heads = nn.ModuleDict(
            {name: nn.Linear(128, torch.Size(shape).numel()) for name, shape in shapes.items()}
        )
        for head in self.heads.values():
            nn.init.normal_(head.weight, std=0.01)  # pyright: ignore[reportArgumentType]

    def initial_state(self, batch_size: int) -> Tensor:
        return self.encoder.weight.new_zeros(batch_size, 64)

    def forward(self, obs: Tensor, state: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        encoded = torch.relu(self.encoder(obs))
        state = self.memory(encoded, state)
        x = torch.cat([encoded, state], -1)
        return {k: head(x).unflatten(-1, self.shapes[k]) for k, head in self.heads.items()}, state


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rule", default="disco103", help="name or file of a rule")
    args = parser.parse_args()

    torch.manual_seed(0)
    kwargs = {"autoreset_mode": AutoresetMode.SAME_STEP}
    env = gymnasium.make_vec("CartPole-v1", NUM_ENVS, "sync", vector_kwargs=kwargs)
    rule = discorl.DiscoUpdateRule(args.rule)
    agent = Recurrent(4, 2, rule)
    optimiser = torch.optim.AdamW(agent.parameters(), lr=3e-3, weight_decay=0.0)
    rule_state = rule.init_state(agent)  # target network, running moments, lifetime memory

    obs = torch.from_numpy(env.reset(seed=0)[0])
    reward, discount = torch.zeros(NUM_ENVS), torch.ones(NUM_ENVS)
    state, returns, finished = agent.initial_state(NUM_ENVS), torch.zeros(NUM_ENVS), [0.0]
    for step in range(1, args.steps + 1):
        start_state, record = state, []
        for _ in range(NUM_STEPS):
            with torch.no_grad():
                out, state = agent(obs, state)
            actions = torch.distributions.Categorical(logits=out["logits"]).sample()
            # Reward and discount are the ones that arrived with this observation.
            record.append((obs, actions, reward, discount, out["logits"]))
            new_obs, earned, terminated, truncated, _ = env.step(actions.numpy())
            obs, reward = torch.from_numpy(new_obs), torch.from_numpy(earned).float()
            ended = torch.from_numpy(terminated | truncated)
            discount = 1 - ended.float()
            state = torch.where(ended.unsqueeze(1), agent.initial_state(NUM_ENVS), state)
            returns += reward
            finished += returns[ended].tolist()
            returns[ended] = 0
        observations, taken, rewards, discounts, logits = map(torch.stack, zip(*record))
        rollout = discorl.AgentRollout(
            observations, taken, rewards, discounts, logits, agent_state=start_state
        )

        loss, rule_state, logs = rule.loss(agent, rollout, rule_state)
        optimiser.zero_grad()
        loss.backward()  # add terms of your own, clip, accumulate: as with any loss
        optimiser.step()
        if step % 50 == 0 or step == args.steps:
            mean = sum(finished[-50:]) / len(finished[-50:])
            print(f"step {step}: return {mean:.1f}, loss {logs['total_loss']:.4f}", flush=True)


if __name__ == "__main__":
    main()
