"""Bring your own agent: any nn.Module, trained on Catch by a discovered rule.

python examples/own_agent.py                       # Catch with Disco103
python examples/own_agent.py --save agent.pt       # continue later with --load agent.pt
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn

import discorl
from discorl.envs.tasks.catch import Catch


class MyAgent(nn.Module):
    """An observation goes in, five heads come out.

    ``logits`` [B, A] is the policy. ``y`` [B, Y] and ``z`` [B, A, Y] are predictions with no
    predefined meaning: the rule gives them one. ``q`` [B, A, K] are action values in bins, and
    ``aux_pi`` [B, A, A] says for each action what the policy will be one step later.
    """

    def __init__(self, num_inputs: int, num_actions: int, heads: dict[str, int]) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.torso = nn.Sequential(nn.Linear(num_inputs, 256), nn.ReLU(), nn.Linear(256, 256))
        self.logits = nn.Linear(256, num_actions)
        self.y = nn.Linear(256, heads["y"])
        # What follows an action: state and action go in, then there is a layer for each head.
        self.after_action = nn.Linear(256 + num_actions, 128)
        self.of_actions = nn.ModuleDict({k: nn.Linear(128, heads[k]) for k in ("z", "q", "aux_pi")})
        for head in (self.logits, self.y, *self.of_actions.values()):
            assert isinstance(head, nn.Linear)
            nn.init.normal_(head.weight, std=0.01)  # start near uniform predictions
            nn.init.zeros_(head.bias)

    def forward(self, obs: Tensor) -> dict[str, Tensor]:
        state = torch.relu(self.torso(obs.flatten(1)))
        actions = torch.eye(self.num_actions, device=obs.device).expand(len(obs), -1, -1)
        pairs = torch.cat([state.unsqueeze(1).expand(-1, self.num_actions, -1), actions], -1)
        hidden = torch.relu(self.after_action(pairs))
        per_action = {name: head(hidden) for name, head in self.of_actions.items()}
        return {"logits": self.logits(state), "y": self.y(state), **per_action}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rule", default="disco103", help="name or file of a rule")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", help="file to save the trainer to")
    parser.add_argument("--load", help="file to continue from")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    rule = discorl.DiscoUpdateRule(args.rule)
    env, env_rng = Catch(num_envs=2), torch.Generator().manual_seed(args.seed)
    sizes = rule.heads(env.spec.num_actions)
    agent = MyAgent(64, env.spec.num_actions, sizes.flat | sizes.per_action)
    trainer = discorl.DiscoTrainer(agent, rule=rule, lr=0.01, seed=args.seed)
    if args.load:
        trainer.load_state_dict(torch.load(args.load, weights_only=True))

    env_state, timestep = env.reset(env_rng)

    def step_fn(actions: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """Your environment goes here: actions in, and observations, rewards and dones out."""
        nonlocal env_state
        env_state, now = env.step(env_state, torch.from_numpy(actions), env_rng)
        return now.observation, now.reward, now.discount == 0

    obs, state, catches = timestep.observation, None, []
    for step in range(1, args.steps + 1):
        rollout, obs, state = discorl.collect_rollout(
            agent, step_fn, obs, state, rollout_len=29, generator=trainer.generator
        )
        logs = trainer.step(rollout)
        catches += (rollout.rewards[1:][rollout.discounts[1:] == 0] > 0).tolist()
        if step % 50 == 0 or step == args.steps:
            rate = np.mean(catches[-300:])
            print(f"step {step}: catch rate {rate:.0%}, loss {logs['total_loss']:.4f}", flush=True)
    if args.save:
        torch.save(trainer.state_dict(), args.save)


if __name__ == "__main__":
    main()
