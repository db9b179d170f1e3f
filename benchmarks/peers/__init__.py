"""Workers: each runs one implementation in a process, and where needed an environment, of its own.

They are started as modules (``python -m benchmarks.peers.ours``) from the root of the repository.
"""
