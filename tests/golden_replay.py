"""Replays golden vectors of the JAX reference through discorl and prints the worst errors.

    python tests/golden_replay.py FILE...

The package beside this file does it. Python looks for it here, because this file is run.
"""

import sys

if __name__ == "__main__":
    from golden.replay import main  # pyright: ignore[reportMissingImports]

    sys.exit(main(sys.argv[1:]))
