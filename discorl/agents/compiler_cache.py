"""Where torch.compile keeps what it compiled, which it loads as code and as pickles.

By default that is a folder with a predictable name in the system's temporary folder, which another
user can make first and fill. It becomes a private one here, before anything is compiled.
"""

from __future__ import annotations

import os
from pathlib import Path

from discorl.cache import private_cache, private_folder

VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def use_private_cache() -> None:
    """Let torch.compile use the user's cache, or folders of the user's choice that are private.

    Raises if others can write to them. It holds for the rest of the process, and for processes that
    this one starts.
    """
    given = {variable: os.environ.get(variable) for variable in VARIABLES}
    private = private_cache("inductor")
    os.environ |= {VARIABLES[0]: str(private), VARIABLES[1]: str(private / "triton")}

    from torch._inductor.runtime import cache_dir_utils  # which already makes a folder

    predictable = Path(cache_dir_utils.default_cache_dir())
    for variable, folder in given.items():
        # Torch itself sets them to its default as soon as it has compiled something.
        if folder and not Path(folder).absolute().is_relative_to(predictable):
            os.environ[variable] = str(private_folder(Path(folder), variable))
    _replace_default(private)


def _replace_default(private: Path) -> None:
    """Some things use the default whatever the variables say: precompiled headers, for one.

    Versions of torch differ in which of these names they have.
    """
    from torch._inductor import codecache
    from torch._inductor.runtime import cache_dir_utils, runtime_utils

    for module in (cache_dir_utils, runtime_utils, codecache):
        if hasattr(module, "default_cache_dir"):
            vars(module)["default_cache_dir"] = lambda: str(private)
    headers = private / "precompiled_headers"
    for name, folder in (("_HEADER_DIR", headers), ("_HEADER_LOCK_DIR", headers / "locks")):
        if hasattr(codecache, name):
            setattr(codecache, name, str(folder))
    if hasattr(codecache, "_precompile_header"):
        codecache._precompile_header.cache_clear()  # it may remember headers at the old place
