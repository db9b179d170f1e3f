"""Downloading one file: verified, atomic, and from the start again if it breaks off."""

from __future__ import annotations

import hashlib
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

from rich.progress import wrap_file

from discorl.atomic import atomic_file
from discorl.errors import DiscorlError

ATTEMPTS = 3
TIMEOUT_SECONDS = 20
MAX_BYTES = 256 * 2**20


class _TransientError(Exception):
    """Worth another attempt."""


def download(url: str, path: Path, sha256: str, show_progress: bool = True) -> None:
    """Fetch ``url`` into ``path``, which changes only if the whole file has the right checksum.

    Broken transfers are tried again; a machine without network fails at once.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise DiscorlError(f"cannot create {path.parent}: {e.strerror}") from None
    for attempt in range(1, ATTEMPTS + 1):
        digest = hashlib.sha256()
        try:
            with atomic_file(path) as file:
                for chunk in _chunks(url, path.name, show_progress):
                    digest.update(chunk)
                    file.write(chunk)
                if digest.hexdigest() != sha256:
                    raise DiscorlError(f"wrong sha256 from {url}: {digest.hexdigest()}")
            return
        except _TransientError as e:
            if attempt == ATTEMPTS:
                raise DiscorlError(f"{e} (tried {ATTEMPTS} times)") from None
            time.sleep(0.5 * 2**attempt)


def _chunks(url: str, label: str, show_progress: bool) -> Iterator[bytes]:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
            total = int(response.headers.get("Content-Length") or 0)
            title = f"Downloading {label}"
            received = 0
            with wrap_file(response, total, description=title, disable=not show_progress) as stream:
                while chunk := stream.read(1 << 16):
                    received += len(chunk)
                    if received > MAX_BYTES:
                        raise DiscorlError(f"{url} sent more than {MAX_BYTES} bytes")
                    yield chunk
            if received < total:
                raise _TransientError(
                    f"the transfer from {url} broke off at {received} of {total} bytes"
                )
    except urllib.error.HTTPError as e:
        if e.code >= 500 or e.code == 429:
            raise _TransientError(f"{url} answered {e.code}") from None
        raise DiscorlError(f"{url} answered {e.code} {e.reason}") from None
    except urllib.error.URLError as e:
        if isinstance(e.reason, TimeoutError):
            raise _TransientError(f"{url} did not answer in time") from None
        raise DiscorlError(f"no connection to {url} ({e.reason})") from None
    except (TimeoutError, ConnectionError, HTTPException) as e:
        raise _TransientError(f"the transfer from {url} broke off ({e})") from None
