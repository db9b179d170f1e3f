"""Runs, checkpoints and rules written by discorl 0.1.0, which later versions read; see make.py."""
