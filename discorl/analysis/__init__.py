"""Analysis: statistics of runs and probes of rules."""
