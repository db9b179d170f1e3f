"""Learning: Disco103 beside the actor-critic and PPO, at equal environment steps."""
