"""Training: from a configuration to a trained agent."""
