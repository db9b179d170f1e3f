"""Vectorised environments on tensors."""
