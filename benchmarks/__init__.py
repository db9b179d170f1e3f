"""The same work done by discorl and by its peers, timed side by side: ``python -m benchmarks``."""
