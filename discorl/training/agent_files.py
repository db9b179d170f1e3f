"""Where the agents of a run are: at its end, at its best, and in its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from discorl.errors import DiscorlError
from discorl.runs.checkpoint import CheckpointFolder, load
from discorl.runs.files import load_params
from discorl.types import Params

KIND = "discorl train"
"""What checkpoints of training say that they are."""
AGENT, ENV = "agent.npz", "env.npz"
BEST, BEST_ENV = "best.npz", "best-env.npz"
ENV_OF = {AGENT: ENV, BEST: BEST_ENV}
"""What the environments knew when an agent was saved, by its file; many know nothing."""
CHECKPOINTS = "checkpoints"
NOT_NEEDED = ("replay", "optimiser", "env_state", "timestep")
"""Parts of a checkpoint that only training needs; some are gigabytes."""


class SavedAgent(NamedTuple):
    """An agent as a file holds it."""

    file: Path
    params: Params
    env_memory: Params
    """What its environments had learnt, such as the scale of observations; mostly nothing."""


def run_folder(path: Path) -> Path:
    """The folder of the run that a file of an agent, or a folder of checkpoints, belongs to."""
    if path.suffix == ".npz":
        return path.parent
    if path.suffix == ".dc":
        return path.absolute().parent.parent
    return path.absolute().parent if _holds_checkpoints(path) else path


def read_agent(path: Path, best: bool = False) -> SavedAgent:
    """The agent of a run, of its folder of checkpoints, or in a file of either.

    Of a run it is the newest, also while the run goes on, or the ``best`` that it has found.
    """
    if best:
        path = _best_of(run_folder(path))
    if path.suffix == ".npz":
        return _from_npz(path)
    if path.suffix == ".dc":
        return _from_checkpoint(path, load(path, NOT_NEEDED))
    agent = path / AGENT
    folder = CheckpointFolder(path if _holds_checkpoints(path) else path / CHECKPOINTS)
    if (steps := folder.steps()) and not _is_older(folder.path(steps[-1]), agent):
        found = folder.latest(without=NOT_NEEDED)
        assert found is not None
        return _from_checkpoint(found.path, found.content)
    if not agent.exists() and (path / "config.json").exists():
        best_so_far = (path / BEST).exists()
        raise DiscorlError(
            f"{path} has no agent yet: a run saves one at its end and in checkpoints "
            "(--checkpoint.every-minutes, --checkpoint.every-steps); "
            + ("the best so far is there: --best" if best_so_far else "wait, or resume it")
        )
    return _from_npz(agent)


def _holds_checkpoints(path: Path) -> bool:
    return path.absolute().name == CHECKPOINTS and not (path / "config.json").exists()


def _is_older(checkpoint: Path, agent: Path) -> bool:
    """Whether the run has ended since: agent.npz is the last that it writes."""
    return agent.exists() and agent.stat().st_mtime_ns >= checkpoint.stat().st_mtime_ns


def _best_of(run: Path) -> Path:
    if not (run / BEST).exists():
        raise DiscorlError(
            f"{run} has no {BEST}: only runs that are evaluated as they train have one, from their "
            "first evaluation on (--eval-every); use the agent of its end instead"
        )
    return run / BEST


def _from_npz(path: Path) -> SavedAgent:
    memory = path.with_name(ENV_OF.get(path.name, ENV))
    return SavedAgent(path, load_params(path), load_params(memory) if memory.exists() else {})


def _from_checkpoint(path: Path, content: Any) -> SavedAgent:
    """What ``training/state.py`` put into a checkpoint."""
    try:
        if content["kind"] != KIND:
            raise ValueError
        params, env_memory = content["shared"]["agent"]["params"], content["processes"][0]
        return SavedAgent(path, _tensors(params), _tensors(env_memory["env_memory"]))
    except (LookupError, TypeError, ValueError):
        raise DiscorlError(f"{path} holds no agent: it is not a checkpoint of '{KIND}'") from None


def _tensors(part: Any) -> Params:
    if not isinstance(part, dict) or not all(isinstance(x, Tensor) for x in part.values()):
        raise TypeError
    return part
