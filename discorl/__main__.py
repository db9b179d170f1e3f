"""``python -m discorl``"""

import sys

from discorl.cli import main

sys.exit(main())
