"""Docstrings mark a block of code with two colons; Markdown needs one."""

from __future__ import annotations

import re
from typing import Any

import griffe


class LiteralBlocks(griffe.Extension):
    """Rewrites docstrings as they are read."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        del kwargs
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"::$", ":", obj.docstring.value, flags=re.MULTILINE)
