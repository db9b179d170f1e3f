"""Files to the hub and back, of known names and bounded sizes. The only user of its client."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from discorl.bounded import open_regular
from discorl.errors import DiscorlError
from discorl.printable import printable
from discorl.rules.store import OFFLINE_ENV, is_offline


@dataclass(frozen=True)
class Limit:
    """What a file of a repository may be."""

    max_bytes: int
    is_needed: bool = True


def upload(repo: str, files: Mapping[str, Path], message: str, private: bool = False) -> str:
    """Put files into a repository, which is made if it is not there; returns the page of it."""
    hub = _client()
    api = hub.HfApi()
    with _explained(repo):
        url = api.create_repo(repo, private=private or None, exist_ok=True)
        additions = [hub.CommitOperationAdd(name, str(path)) for name, path in files.items()]
        api.create_commit(repo, additions, commit_message=message)
    return str(url)


def download(
    repo: str, limits: Mapping[str, Limit], folder: Path, revision: str | None = None
) -> tuple[dict[str, Path], str]:
    """The files of a repository that ``limits`` names, in ``folder``, and the commit they are of.

    Whatever else is in the repository stays there.
    """
    hub = _client()
    api, found = hub.HfApi(), {}
    with _explained(repo):
        info = api.model_info(repo, revision=revision, files_metadata=True)
        there = {one.rfilename: one for one in info.siblings or ()}
        for name, limit in limits.items():
            if name not in there:
                if limit.is_needed:
                    raise DiscorlError(f"{repo} has no {name}: was it published by discorl?")
                continue
            _check_size(f"{name} of {repo}", there[name].size, limit.max_bytes)
        for name in limits.keys() & there.keys():
            path = Path(api.hf_hub_download(repo, name, revision=info.sha, local_dir=folder))
            _check_size(f"{name} of {repo}", path.stat().st_size, limits[name].max_bytes)
            stored = there[name].lfs
            if stored is not None and sha256_of(path, limits[name].max_bytes) != stored.sha256:
                raise DiscorlError(f"{name} of {repo} did not arrive whole: try again")
            found[name] = path
    return found, str(info.sha)


def sha256_of(path: Path, max_bytes: int) -> str:
    """Checksum of a file of at most ``max_bytes``."""
    with open_regular(path, max_bytes) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def card_data(**entries: Any) -> str:
    """The header of a card, as the hub reads it; ``eval_results`` are those of ``result``."""
    return _client().ModelCardData(**entries).to_yaml()


def result(task: str, score: str) -> Any:
    """A score of an agent, for the header of its card."""
    return _client().EvalResult(
        task_type="reinforcement-learning",
        task_name="reinforcement-learning",
        dataset_type=task,
        dataset_name=task,
        metric_type="mean_reward",
        metric_name="mean_reward",
        metric_value=score,
    )


def _client() -> ModuleType:
    if is_offline():
        raise DiscorlError(f"--offline or {OFFLINE_ENV} forbids using the hub")
    try:
        import huggingface_hub
    except ImportError:
        raise DiscorlError(
            "sharing needs the package huggingface_hub, which is not installed: "
            "pip install 'discorl[hub]'"
        ) from None
    return huggingface_hub


def _check_size(name: str, size: int | None, max_bytes: int) -> None:
    if size is None or size > max_bytes:
        raise DiscorlError(f"{name} has {size} bytes, too many: at most {max_bytes} are read")


@contextmanager
def _explained(repo: str) -> Iterator[None]:
    """What can go wrong with the hub, in one line that says what to do."""
    from huggingface_hub import errors

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of its own HTTP client
            yield
    except errors.HFValidationError as e:
        raise DiscorlError(f"'{repo}' is not the name of a repository: {_line(e)}") from None
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as e:
        raise DiscorlError(
            f"the hub has no {repo}, or it is private ({_line(e)}): check the name, and log in "
            "with 'hf auth login'"
        ) from None
    except (errors.HfHubHTTPError, errors.LocalTokenNotFoundError) as e:
        raise DiscorlError(
            f"the hub refused {repo} ({_line(e)}): log in with 'hf auth login', as somebody who "
            "may use it"
        ) from None
    except DiscorlError:
        raise
    except Exception as e:  # of its HTTP client, which changes between versions
        raise DiscorlError(f"cannot reach the hub for {repo}: {_line(e)}") from None


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return printable(f"{type(error).__name__}: {text}")[:200]
