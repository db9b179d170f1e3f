"""Comparison: finished runs side by side, with intervals over seeds."""
