"""Sharing trained agents."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from discorl.bounds import check_between
from discorl.envs.registry import imported_module
from discorl.errors import DiscorlError
from discorl.rules.format import MAX_FILE_BYTES
from discorl.rules.store import load_rule
from discorl.runs.config_file import MAX_CONFIG_BYTES, read_config_file
from discorl.runs.files import (
    MAX_PARAMS_BYTES,
    load_params,
    save_params,
    write_json,
    write_text,
)
from discorl.sharing import hub
from discorl.sharing.card import ABOUT, CURVE, write_card
from discorl.training.agent_files import AGENT, ENV
from discorl.training.evaluate import Evaluation, evaluate
from discorl.training.rule_choice import choose_rule, read_config
from discorl.training.trained_agent import LoadedAgent, load_agent

CONFIG, RULE = "config.json", "rule.npz"
MAX_CURVE_BYTES = 16 * 2**20
LIMITS = {
    CONFIG: hub.Limit(MAX_CONFIG_BYTES),
    AGENT: hub.Limit(MAX_PARAMS_BYTES),
    ENV: hub.Limit(MAX_PARAMS_BYTES, is_needed=False),
    RULE: hub.Limit(MAX_FILE_BYTES, is_needed=False),
    CURVE: hub.Limit(MAX_CURVE_BYTES, is_needed=False),
}
"""What is pulled."""
TAGS = ["reinforcement-learning", "deep-reinforcement-learning", "discorl"]


def publish_agent(
    agent: LoadedAgent | Path | str,
    repo: str,
    private: bool = False,
    episodes: int = 20,
    greedy: bool = False,
) -> str:
    """Put an agent on the hub as ``repo``, with a card; returns its page.

    It is a loaded one, or anything that ``load_agent`` takes. It plays ``episodes`` for the score
    on the card; 0 for none. What it was trained with comes along: its settings, without the paths
    of this machine, the scale of its observations, its curve, and its rule if that is a file.
    """
    check_between(0, 10_000, "episodes", episodes)
    if not isinstance(agent, LoadedAgent):
        agent = load_agent(agent)
    score = evaluate(agent, episodes, greedy=greedy) if episodes else None
    with tempfile.TemporaryDirectory() as name:
        files = _gather(agent, Path(name))
        files["README.md"] = Path(name) / "README.md"
        content = read_config_file(agent.folder)
        write_text(files["README.md"], agent_card(agent, content, repo, score, CURVE in files))
        about = f"An agent for {agent.config.task}, trained with {agent.rule_name}"
        return hub.upload(repo, files, about, private)


def _gather(agent: LoadedAgent, folder: Path) -> dict[str, Path]:
    """The files of an agent, by the names that they get."""
    files = {CONFIG: folder / CONFIG, AGENT: folder / AGENT}
    save_params(files[AGENT], dict(agent.net.state_dict()))
    if agent.env_memory:
        files[ENV] = folder / ENV
        save_params(files[ENV], agent.env_memory)
    rule = choose_rule(agent.config)
    if rule.path is not None and agent.config.rule == str(rule.path):  # not one that has a name
        files[RULE] = rule.path
    if (curve := agent.folder / CURVE).exists():
        files[CURVE] = curve
    shared = _portable(read_config_file(agent.folder), RULE if RULE in files else None)
    write_json(files[CONFIG], shared)
    return files


def _portable(content: dict[str, Any], rule: str | None) -> dict[str, Any]:
    """A config.json that says nothing of the machine, nor makes another log to somebody's account.

    ``rule`` is the path of the rule's file, if it is one.
    """
    resolved = content.get("resolved_rule")
    resolved = (resolved if isinstance(resolved, dict) else {}) | {"path": rule}
    return content | {"out": None, "log": "", "resolved_rule": resolved}


def agent_card(
    agent: LoadedAgent,
    content: dict[str, Any],
    repo: str,
    score: Evaluation | None,
    has_curve: bool,
) -> str:
    """What the hub shows of an agent."""
    config, name = agent.config, repo.rpartition("/")[2]
    text = (
        f"An agent for {ABOUT}.\n\n"
        f"    pip install 'discorl[hub]'\n    discorl agents pull {repo}\n"
        f"    discorl evaluate runs/{name}\n\n"
        "The files hold numbers and text, no code."
    )
    resolved = content.get("resolved_rule") or {}
    came = {
        "task": config.task,
        "rule": agent.rule_name,
        "sha256 of the rule": resolved.get("sha256"),
        "steps": config.steps,
        "environment steps": config.steps * config.num_envs * config.rollout_length,
        "seed": config.seed,
        "parameters": sum(p.numel() for p in agent.net.parameters()),
        "discorl": content.get("discorl"),
        "torch": content.get("torch"),
    }
    tables = {
        "Score": _scored(score) if score else {},
        "Where it comes from": {key: value for key, value in came.items() if value is not None},
        "Environment": asdict(config.env) | {"frame_stack": config.frame_stack},
    }
    header: dict[str, Any] = {"tags": [*TAGS, config.task]}
    if score:
        shown = f"{score.score.value:.2f} +/- {_deviation(score):.2f}"
        header |= {"model_name": name, "eval_results": [hub.result(config.task, shown)]}
    return write_card(name, text, tables, has_curve, **header)


def _scored(score: Evaluation) -> dict[str, Any]:
    returns = [r for seed in score.seeds for r in seed.returns]
    rows: dict[str, Any] = {
        "mean return": score.score.value,
        "deviation": _deviation(score),
        "episodes": len(returns),
        "actions": score.policy,
        "mean length": score.mean_length,
    }
    if score.success is not None:
        rows[score.success_name] = score.success.value
    return rows


def _deviation(score: Evaluation) -> float:
    return float(np.std([r for seed in score.seeds for r in seed.returns]))


def pull_agent(
    repo: str, out: Path | str | None = None, revision: str | None = None
) -> tuple[Path, str]:
    """Fetch an agent from the hub into the folder ``out``, by default runs/NAME.

    Returns the folder, as ``load_agent`` takes it, and what to know before that: the module that
    its task imports, if it names one. Everything is read and checked before the folder appears.
    """
    out = Path(out) if out else Path("runs") / repo.rpartition("/")[2]
    if out.exists():
        raise DiscorlError(f"{out} is already there: choose another --out, or remove it")
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.absolute().parent, prefix=".pull-") as name:
        files, _ = hub.download(repo, LIMITS, Path(name) / "files", revision)
        run = Path(name) / "run"
        run.mkdir()
        for file in files:
            shutil.move(files[file], run / file)
        rule = str(out.absolute() / RULE) if RULE in files else None
        write_json(run / CONFIG, _portable(read_config_file(run), rule))
        config, _ = read_config(run)
        for file in {AGENT, ENV} & files.keys():
            load_params(run / file)
        if RULE in files:
            load_rule(run / RULE)
        run.rename(out)
    module = imported_module(config.task)
    note = f"Its task, {config.task}, imports the module '{module}': look at that first"
    return out, note if module else ""
