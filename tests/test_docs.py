"""The documentation keeps up with the code: what it names exists, and what exists is in it."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import discorl
from discorl.cli import main
from discorl.cli.discover import ResumeDiscoveryArgs
from discorl.cli.options import options_of
from discorl.cli.train import ResumeArgs
from tests.browser import chromium_driver
from tests.builders import run_python

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
RESULTS = sorted((ROOT / "benchmarks").rglob("*.md"))
REFERENCE = "\n".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def find(name: str) -> Any:
    """The module or object with this dotted name."""
    parts = name.split(".")
    for i in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:i]))
        except ModuleNotFoundError:
            continue
        for part in parts[i:]:
            found = getattr(found, part)
        return found
    raise AttributeError(name)


@pytest.mark.parametrize("name", discorl.__all__)
def test_public_symbols_are_documented(name: str) -> None:
    assert inspect.getdoc(getattr(discorl, name))
    assert f"::: discorl.{name}\n" in REFERENCE


def public(body: list[ast.stmt]) -> list[ast.ClassDef | ast.FunctionDef]:
    return [
        x
        for x in body
        if isinstance(x, ast.ClassDef | ast.FunctionDef)
        and not x.name.startswith("_")
        and "overload" not in map(ast.unparse, x.decorator_list)
    ]


def test_all_that_is_public_has_a_docstring() -> None:
    """Modules, classes, functions and methods; a method may be explained by its Protocol."""
    modules = {path: ast.parse(path.read_text()) for path in (ROOT / "discorl").rglob("*.py")}
    assert [named(path) for path, module in modules.items() if not ast.get_docstring(module)] == []
    top = {
        (named(path), x.name): x for path, module in modules.items() for x in public(module.body)
    }
    assert len(top) > 300
    assert [name for name, x in top.items() if not ast.get_docstring(x)] == []
    methods = [
        (*name, x.name, ast.get_docstring(x))
        for name, owner in top.items()
        if isinstance(owner, ast.ClassDef)
        for x in public(owner.body)
    ]
    explained = {method for *_, method, text in methods if text}
    explained |= {"forward", "observation", "close_extras"}  # of PyTorch and Gymnasium
    assert [where for *where, text in methods if not text and where[-1] not in explained] == []


def test_the_reference_names_only_what_exists() -> None:
    listed = re.findall(r"^::: (\S+)$", REFERENCE, re.MULTILINE)
    assert len(listed) == len(set(listed)) > len(discorl.__all__)
    for name in listed:
        find(name)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for name in re.findall(r"\]\[(discorl[\w.]*)\]", text):
        find(name)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if target.startswith("http"):
            continue
        # The site shows the benchmarks beside the pages, see docs/_hooks.
        base = ROOT if target.startswith("benchmarks/") else page.parent
        assert (base / target).exists(), target
    assert "--8 <" not in text, "a formatter took the line that includes a file for Python"
    for target in re.findall(r'--8<-- "(.*)"', text):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_snippets_are_python_and_import_what_exists(page: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("discorl"):
                for alias in node.names:
                    find(f"{node.module}.{alias.name}")


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_the_first_lines_of_python_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As they are written, but for the length of the run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(discorl, "train", for_a_moment(discorl.train))
    block = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)[0]
    exec(block, {})
    said = capsys.readouterr().out
    assert "<Evaluation of " in said and "<Comparison of 1 run," in said


def for_a_moment(train: Any) -> Any:
    """The same function, with another budget."""

    def train_briefly(task: str, **settings: Any) -> Any:
        kept = {k: v for k, v in settings.items() if k not in ("steps", "env_steps")}
        often = {name: 1 for name in ("eval_every",) if name in kept}
        return train(task, **kept | often, steps=2, log_every=1)

    return train_briefly


def test_the_whole_way_in_fifteen_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From training to a file that acts, as the README has it; only the run is shorter."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (block,) = (b for b in blocks if "export(" in b)
    assert len([line for line in block.splitlines() if line]) <= 15
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(discorl, "train", for_a_moment(discorl.train))
    exec(block, {})
    said = capsys.readouterr().out
    assert "<Evaluation of runs/cartpole" in said
    assert Path("runs/cartpole/best.npz").exists() and Path("policy.pt2").exists()


def test_the_callback_in_the_guide_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(discorl, "train", for_a_moment(discorl.train))
    (block,) = re.findall(
        r"(import discorl\n\ndef look.*?)```", (ROOT / "docs/training.md").read_text(), re.DOTALL
    )
    exec(block, {})
    assert capsys.readouterr().out.splitlines()[-1] == "", "there was no reason to stop so soon"


HELPS = [
    "",  # what they have in common
    *("train catch", "train gym:CartPole-v1", "discover suite"),
    *("train ale:Pong", "train minatar:breakout", "train procgen:coinrun", "train nethack:score"),
    *("sweep catch", "tune catch"),
    *("analyse", "compare", "evaluate", "export", "envs", "agents publish", "agents pull"),
    *("rules list", "rules fetch", "rules export", "rules publish", "rules pull"),
]
ELSEWHERE = {
    *("--nproc-per-node", "--nnodes", "--max-restarts"),  # torchrun
    *("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id"),
    *("--resume", "--version", "--help", "--help-all", "--offline"),
    "--rm",  # docker
}


@pytest.fixture(scope="module")
def options() -> set[str]:
    """Every option of every command, as its help shows it."""
    shown = io.StringIO()
    for command in HELPS:
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            main([*command.split(), "--help-all"])
    found = set(re.findall(r"--[a-z][a-z0-9.-]*", shown.getvalue()))
    assert len(found) > 60
    for settings in (ResumeArgs, ResumeDiscoveryArgs):
        for option in options_of(settings):
            found |= {option.name, f"--{option.group}"}
    # Settings of the environment and of its suite also work without their prefix.
    short = {name.replace("--env.", "--").replace("--suite.", "--") for name in found}
    return found | short | ELSEWHERE


def code_of(page: Path) -> str:
    """What a page shows as code."""
    found = re.findall(r"```.*?```|`[^`]+`|^    .*?$", page.read_text(), re.DOTALL | re.MULTILINE)
    return "\n".join(found)


@pytest.mark.parametrize("page", [*PAGES, *RESULTS], ids=named)
def test_options_in_the_text_exist(page: Path, options: set[str]) -> None:
    # The benchmarks have options of their own, before the bare -- that ends them.
    code = re.sub(r"python -m benchmarks.*?( -- |`|\n)", r"\1", code_of(page))
    code = re.sub(r"python examples/\S+.*", "", code)
    named_there = {name.rstrip(".") for name in re.findall(r"(?<![\w-])--[a-z][a-z0-9.-]*", code)}
    assert named_there - {"--env"} <= options


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``--strict`` makes every warning an error: dead links, unknown names, pages left out."""
    pytest.importorskip("mkdocs", reason="needs pip install 'discorl[docs]'")
    pytest.importorskip("mkdocstrings", reason="needs pip install 'discorl[docs]'")
    env = {"NO_MKDOCS_2_WARNING": "1", "NO_COLOR": "1", "PYTHONPATH": os.getenv("PYTHONPATH", "")}
    site = tmp_path_factory.mktemp("docs") / "site"
    done = run_python("-m", "mkdocs", "build", "--strict", "-d", site, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return site


class Links(HTMLParser):
    """What a page links to, and what it loads by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "a" and (target := found.get("href")):
            self.links.append(target)
        elif target := found.get("src") or (tag == "link" and found.get("href")):
            self.loads.append(target)


@pytest.mark.slow
def test_the_site_can_be_opened_from_disk(site: Path) -> None:
    """Links lead to files, not to folders that only a server shows as pages; nothing is remote."""
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]
    assert len(pages) > 20
    for page in pages:
        parser = Links()
        parser.feed(page.read_text())
        assert parser.links and parser.loads
        for target in parser.links + parser.loads:
            path = target.partition("#")[0]
            if path and not path.startswith(("https://", "data:")):
                assert (page.parent / path).is_file(), f"{page.name} links to {target}"
        assert not [x for x in parser.loads if x.startswith(("http", "//"))]


@pytest.mark.slow
def test_the_reference_shows_types(site: Path) -> None:
    text = re.sub("<[^>]*>", "", (site / "reference" / "index.html").read_text())
    assert "DiscoTrainer" in text
    assert re.search(r"config:\s*TrainConfig", text)
    assert re.search(r"folder:\s*(str \| )?Path", text)


@pytest.fixture
def chromium(tmp_path: Path) -> Iterator[Any]:
    with chromium_driver(tmp_path / "profile") as driver:
        yield driver


@pytest.mark.slow
@pytest.mark.browser
def test_the_search_works_from_disk(site: Path, chromium: Any) -> None:
    chromium.implicitly_wait(30)  # seconds, for elements that a script makes
    chromium.get((site / "quickstart.html").as_uri())
    chromium.find_element("css selector", "label.md-header__button[for=__search]").click()
    chromium.find_element("css selector", "input.md-search__input").send_keys("retrace")
    first = chromium.find_element("css selector", ".md-search-result__link")
    assert first.get_attribute("href").startswith("file://")
    results = chromium.find_element("css selector", ".md-search-result__list")
    assert "retrace" in results.text.lower()
    assert chromium.get_log("browser") == []
