"""Rules and baselines on tasks that the rules have never seen."""
