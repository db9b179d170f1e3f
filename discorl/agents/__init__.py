"""Agents: acting, replay, and the update."""
