"""``python -m tests.golden FILE...``"""

import sys

from .replay import main

sys.exit(main(sys.argv[1:]))
