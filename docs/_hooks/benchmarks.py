"""Show the benchmarks' own pages and pictures in the site, from where they are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files


def on_files(files: Files, config: Any) -> Files:
    """Add benchmarks/README.md and the results beside it."""
    root = Path(config.config_file_path).parent
    results = root / "benchmarks" / "results"
    found = [root / "benchmarks" / "README.md", *sorted(results.glob("*.json"))]
    for ending in ("md", "png", "jsonl"):
        found += sorted(results.rglob(f"*.{ending}"))
    for path in found:
        uri = path.relative_to(root).as_posix()
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files
