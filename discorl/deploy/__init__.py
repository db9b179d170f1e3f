"""Trained agents outside our own loop: acting on raw observations, and files for elsewhere."""
