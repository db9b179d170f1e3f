"""``python -m discorl``"""

import sys

from discorl.cli import main
from discorl.cli.current_folder import search_current_folder

search_current_folder(sys.argv[1:])
sys.exit(main())
