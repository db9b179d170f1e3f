"""Downloading one file: verified, atomic, in limited time, and again if it breaks off."""

from __future__ import annotations

import hashlib
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import closing
from http.client import HTTPException
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from discorl.atomic import atomic_file
from discorl.errors import DiscorlError

ATTEMPTS = 3
SILENT_SECONDS = 20
"""How long a server may be silent before an attempt counts as failed."""
MAX_SECONDS = 300.0
"""How long all attempts may take together, by default: 10 KB a second are enough for Disco103."""
MAX_BYTES = 256 * 2**20

Piece = tuple[bytes, int | None]
"""Bytes that arrived, and how many the server said there are in all."""


class _TransientError(Exception):
    """Worth another attempt."""


def download(
    url: str,
    path: Path,
    sha256: str,
    show_progress: bool = True,
    max_seconds: float = MAX_SECONDS,
) -> None:
    """Fetch ``url`` into ``path``, which changes only if the whole file has the right checksum.

    Broken transfers are tried again, for ``max_seconds`` at most; a machine without network fails
    at once.
    """
    if not 0 < max_seconds < 1e6:
        raise DiscorlError(f"a download needs a time limit between 0 and 1e6, not {max_seconds}")
    end = time.monotonic() + max_seconds
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise DiscorlError(f"cannot create {path.parent}: {e.strerror}") from None
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with atomic_file(path) as file, _progress(path.name, show_progress) as progress:
                digest = hashlib.sha256()
                with closing(_until(end, _pieces(url))) as pieces:
                    for data, total in pieces:
                        digest.update(data)
                        file.write(data)
                        progress.update(progress.task_ids[0], advance=len(data), total=total)
                if digest.hexdigest() != sha256:
                    raise DiscorlError(f"wrong sha256 from {url}: {digest.hexdigest()}")
            return
        except TimeoutError:
            raise DiscorlError(
                f"{url} was not here after {max_seconds:g} seconds: try again later, or wait "
                "longer with 'discorl rules fetch --timeout SECONDS'"
            ) from None
        except _TransientError as e:
            if attempt == ATTEMPTS:
                raise DiscorlError(f"{e} (tried {ATTEMPTS} times)") from None
            time.sleep(0.5 * 2**attempt)


def _progress(label: str, show: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    progress = Progress(*columns, disable=not show)
    progress.add_task(f"Downloading {label}", total=None)
    return progress


def _until(end: float, pieces: Generator[Piece]) -> Generator[Piece]:
    """The pieces that arrive before ``end``; raises ``TimeoutError`` then.

    They arrive in another thread: a socket's timeout starts over with each byte, and does not cover
    the search for the server's name. A thread that hangs is left behind.
    """
    arrived: queue.SimpleQueue[Piece | Exception | None] = queue.SimpleQueue()
    unwanted = threading.Event()

    def receive() -> None:
        try:
            with closing(pieces):
                for piece in pieces:
                    arrived.put(piece)
                    if unwanted.is_set():
                        return
            arrived.put(None)
        except Exception as e:
            arrived.put(e)

    threading.Thread(target=receive, daemon=True).start()
    try:
        while True:
            try:
                item = arrived.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise TimeoutError from None
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        unwanted.set()


def _pieces(url: str) -> Generator[Piece]:
    """The body of one answer, as it arrives."""
    try:
        with urllib.request.urlopen(url, timeout=SILENT_SECONDS) as response:
            total = response.length  # None if the server says none, or says nonsense
            received = 0
            while data := response.read1(1 << 16):
                received += len(data)
                if received > MAX_BYTES:
                    raise DiscorlError(f"{url} sent more than {MAX_BYTES} bytes")
                yield data, total
            if total is not None and received < total:
                raise _TransientError(
                    f"the transfer from {url} broke off at {received} of {total} bytes"
                )
    except urllib.error.HTTPError as e:
        e.close()
        if e.code >= 500 or e.code == 429:
            raise _TransientError(f"{url} answered {e.code}") from None
        raise DiscorlError(f"{url} answered {e.code} {e.reason}") from None
    except urllib.error.URLError as e:
        if isinstance(e.reason, TimeoutError):
            raise _silent(url) from None
        raise DiscorlError(f"no connection to {url} ({e.reason})") from None
    except TimeoutError:
        raise _silent(url) from None
    except (ConnectionError, HTTPException) as e:
        raise _TransientError(f"the transfer from {url} broke off ({e})") from None


def _silent(url: str) -> _TransientError:
    return _TransientError(f"{url} did not answer for {SILENT_SECONDS} seconds")
