"""Modules in the current folder, where people keep environments of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def search_current_folder(args: list[str]) -> None:
    """Let Python find modules in the current folder, after all others.

    Not if an argument names that folder or one around it, as in ``evaluate .``: nothing is imported
    from the folder of a run.
    """
    here = Path.cwd()
    if str(here) in sys.path:
        return
    values = (arg.partition("=")[2] or arg for arg in args)
    is_run = any(os.path.isdir(v) and here.is_relative_to(Path(v).resolve()) for v in values)
    if not is_run and not sys.flags.safe_path:
        sys.path.append(str(here))
