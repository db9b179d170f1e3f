"""Show pages that are kept outside docs/ in the site, from where they are kept."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

OF_THE_PROJECT = ("CHANGELOG.md", "CONTRIBUTING.md")


def on_files(files: Files, config: Any) -> Files:
    """Add the project's pages, benchmarks/README.md and the results beside it."""
    root = Path(config.config_file_path).parent
    results = root / "benchmarks" / "results"
    found = [root / name for name in (*OF_THE_PROJECT, "benchmarks/README.md")]
    found += sorted(results.glob("*.json"))
    for ending in ("md", "png", "jsonl"):
        found += sorted(results.rglob(f"*.{ending}"))
    for path in found:
        uri = path.relative_to(root).as_posix()
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """These pages stand beside docs/ in the repository, and beside its pages in the site."""
    del kwargs
    if page.file.src_uri not in OF_THE_PROJECT and not page.file.src_uri.startswith("benchmarks/"):
        return markdown
    return re.sub(r"\]\(((?:\.\./)*)docs/", r"](\1", markdown)
