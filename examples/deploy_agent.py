"""Act with a trained agent in a loop of your own, then export it: discorl train gym:CartPole-v1

python examples/deploy_agent.py runs/RUN
"""

import sys

import gymnasium

import discorl

env = gymnasium.make("CartPole-v1")
agent = discorl.load_agent(sys.argv[1], env=env)
for seed in range(3):
    observation, _ = env.reset(seed=seed)
    memory, total, done = None, 0.0, False  # None: at the start of an episode, nothing to remember
    while not done:
        action, memory = agent.predict(observation, memory)
        observation, reward, terminated, truncated, _ = env.step(action)
        total, done = total + float(reward), terminated or truncated
    print(f"episode {seed}: return {total:.0f}")
print(f"exported: {agent.export('policy.pt2')}")
