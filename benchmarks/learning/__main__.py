"""``python -m benchmarks.learning``."""

from benchmarks.learning.cli import main

main()
