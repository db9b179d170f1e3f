"""Where Disco103 is looked for, and how it is downloaded."""

from __future__ import annotations

import hashlib
import math
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from discorl.cli import main
from discorl.errors import DiscorlError
from discorl.rules import download as download_module
from discorl.rules import store
from discorl.rules.download import ATTEMPTS, download
from discorl.rules.store import cache_path, fetch_disco103, find_disco103, load_rule
from tests.builders import assert_bit_equal, random_rule_params, small_disco, write_small_rule
from tests.foreign import posix

Answer = Callable[[BaseHTTPRequestHandler], None]


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def send(data: bytes, status: int = 200, claimed: int | None = None) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Content-Length", str(len(data) if claimed is None else claimed))
        request.end_headers()
        request.wfile.write(data)

    return answer


class Server:
    """Answers requests with the given answers in turn, the last of them again and again."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.num_requests = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                place = min(outer.num_requests, len(outer.answers) - 1)
                outer.num_requests += 1
                outer.answers[place](self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.is_closing = threading.Event()  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self.http.server_port}/rule.npz"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(download_module.time, "sleep", lambda seconds: None)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.http.is_closing.set()  # type: ignore[attr-defined]
    server.http.shutdown()
    server.http.server_close()
    thread.join()


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> bytes:
    """A stand-in for the published file, of which this machine has no copy yet."""
    data = write_small_rule(tmp_path / "published.npz").read_bytes()
    monkeypatch.setattr(store, "DISCO103_SHA256", sha(data))
    monkeypatch.delenv("DISCORL_DISCO103", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return data


def closed_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# --- download ------------------------------------------------------------------------------------


def test_download_writes_the_file(server: Server, tmp_path: Path) -> None:
    data = bytes(range(256)) * 1000
    server.answers = [send(data)]
    download(server.url, tmp_path / "new" / "file", sha(data), show_progress=False)
    assert (tmp_path / "new" / "file").read_bytes() == data
    assert server.num_requests == 1


def test_download_refuses_a_wrong_checksum(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    server.answers = [send(b"something else")]
    with pytest.raises(DiscorlError, match="wrong sha256"):
        download(server.url, path, sha(b"expected"), show_progress=False)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path], "no temporary file is left"


def test_download_tries_again_after_server_errors(server: Server, tmp_path: Path) -> None:
    server.answers = [send(b"", 500), send(b"", 503), send(b"good")]
    download(server.url, tmp_path / "file", sha(b"good"), show_progress=False)
    assert (tmp_path / "file").read_bytes() == b"good"
    assert server.num_requests == 3


def test_download_tries_again_after_a_broken_transfer(server: Server, tmp_path: Path) -> None:
    server.answers = [send(b"go", claimed=4), send(b"good")]
    download(server.url, tmp_path / "file", sha(b"good"), show_progress=False)
    assert (tmp_path / "file").read_bytes() == b"good"
    assert server.num_requests == 2


@pytest.mark.parametrize("answer", [send(b"", 500), send(b"go", claimed=4)], ids=["500", "cut"])
def test_download_gives_up(server: Server, tmp_path: Path, answer: Answer) -> None:
    server.answers = [answer]
    with pytest.raises(DiscorlError, match=f"tried {ATTEMPTS} times"):
        download(server.url, tmp_path / "file", sha(b"good"), show_progress=False)
    assert server.num_requests == ATTEMPTS
    assert not list(tmp_path.iterdir())


def test_download_does_not_insist_on_what_is_not_there(server: Server, tmp_path: Path) -> None:
    server.answers = [send(b"", 404)]
    with pytest.raises(DiscorlError, match="404"):
        download(server.url, tmp_path / "file", sha(b""), show_progress=False)
    assert server.num_requests == 1


def test_download_stops_at_a_limit(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_module, "MAX_BYTES", 1000)
    server.answers = [send(bytes(5000))]
    with pytest.raises(DiscorlError, match="more than 1000 bytes"):
        download(server.url, tmp_path / "file", sha(bytes(5000)), show_progress=False)
    assert not list(tmp_path.iterdir())


def raw(head: str, body: bytes = b"") -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(f"HTTP/1.1 200 OK\r\n{head}\r\n".encode() + body)
        request.close_connection = True

    return answer


@pytest.mark.parametrize("length", ["abc", "-4", "", "1e9", "4.0"])
def test_download_does_not_depend_on_a_sensible_length(
    server: Server, tmp_path: Path, length: str
) -> None:
    server.answers = [raw(f"Content-Length: {length}\r\n", b"good")]
    download(server.url, tmp_path / "file", sha(b"good"), show_progress=True)
    assert (tmp_path / "file").read_bytes() == b"good"


def test_download_without_a_length(server: Server, tmp_path: Path) -> None:
    server.answers = [raw("", b"good")]
    download(server.url, tmp_path / "file", sha(b"good"), show_progress=False)
    assert (tmp_path / "file").read_bytes() == b"good"


@pytest.mark.parametrize(("length", "what"), [(2, "wrong sha256"), (9**99, "broke off at 4 of")])
def test_download_with_a_length_that_is_a_lie(
    server: Server, tmp_path: Path, length: int, what: str
) -> None:
    server.answers = [raw(f"Content-Length: {length}\r\n", b"good")]
    with pytest.raises(DiscorlError, match=what):
        download(server.url, tmp_path / "file", sha(b"good"), show_progress=False)
    assert not list(tmp_path.iterdir())


def drip(head: bytes, drop: bytes) -> Answer:
    """Sends a byte now and then, always before the socket's timeout, and never ends."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\n" + head)
        with suppress(OSError):  # until the client has gone
            while not request.server.is_closing.wait(0.02):  # type: ignore[attr-defined]
                request.wfile.write(drop)

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        drip(b"Content-Length: 1000000\r\n\r\n", b"x"),
        drip(b"X-Slow: ", b"x"),
        drip(b"X-Silent: ", b""),
    ],
    ids=["body", "header", "silence"],
)
def test_download_ends_in_time(server: Server, tmp_path: Path, answer: Answer) -> None:
    server.answers = [answer]
    with pytest.raises(DiscorlError, match=r"not here after 0\.5 seconds.*--timeout"):
        download(server.url, tmp_path / "file", sha(b""), False, max_seconds=0.5)
    assert not list(tmp_path.iterdir())


def test_download_says_how_long_a_server_was_silent(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_module, "SILENT_SECONDS", 0.1)
    server.answers = [drip(b"Content-Length: 9\r\n\r\nsome", b"")]
    with pytest.raises(DiscorlError, match=r"did not answer for 0\.1 seconds \(tried 3 times\)"):
        download(server.url, tmp_path / "file", sha(b""), show_progress=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_download_needs_a_limit(tmp_path: Path, seconds: float) -> None:
    with pytest.raises(DiscorlError, match="needs a time limit"):
        download("http://127.0.0.1/", tmp_path / "file", "", max_seconds=seconds)


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize(
    ("args", "seconds"), [([], download_module.MAX_SECONDS), (["--timeout", "7"], 7.0)], ids=str
)
def test_the_limit_is_an_option(
    args: list[str], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []
    monkeypatch.setattr(store, "download", lambda *args: given.append(args[-1]))
    assert main(["rules", "fetch", *args]) == 0
    assert given == [seconds]


# --- lookup --------------------------------------------------------------------------------------


def test_the_variable_comes_first(
    published: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (tmp_path / "mine.npz", cache_path()):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(published)
    assert find_disco103() == cache_path()
    monkeypatch.setenv("DISCORL_DISCO103", str(tmp_path / "mine.npz"))
    assert find_disco103() == tmp_path / "mine.npz"
    rule = small_disco()
    assert_bit_equal(load_rule("disco103").params, random_rule_params(rule))


def test_the_cache_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_path() == tmp_path / "discorl" / "disco_103.npz"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_path() == tmp_path / "home" / ".cache" / "discorl" / "disco_103.npz"


def test_the_download_fills_the_cache(published: bytes, server: Server) -> None:
    assert find_disco103() is None
    server.answers = [send(published)]
    assert fetch_disco103(server.url, show_progress=False) == cache_path()
    assert find_disco103() == cache_path()
    assert load_rule("disco103").path == cache_path()
    assert server.num_requests == 1


@posix
def test_to_look_for_it_makes_no_folder(published: bytes, tmp_path: Path) -> None:
    del published
    assert find_disco103() is None
    assert not (tmp_path / "cache").exists()


@posix
def test_it_is_not_downloaded_where_others_can_write(
    published: bytes, server: Server, tmp_path: Path
) -> None:
    server.answers = [send(published)]
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(DiscorlError, match="other users can write to"):
        fetch_disco103(server.url, show_progress=False)
    assert not list((tmp_path / "cache").iterdir())


def test_a_wrong_download_leaves_the_cache_empty(published: bytes, server: Server) -> None:
    server.answers = [send(published + b"!")]
    with pytest.raises(DiscorlError, match="wrong sha256"):
        fetch_disco103(server.url, show_progress=False)
    assert find_disco103() is None


@pytest.mark.usefixtures("published")
def test_a_variable_that_names_nothing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISCORL_DISCO103", str(tmp_path / "gone.npz"))
    with pytest.raises(DiscorlError, match=r"DISCORL_DISCO103.*gone\.npz"):
        find_disco103()


@pytest.mark.usefixtures("published")
def test_another_file_in_its_place_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_small_rule(tmp_path / "other.npz", seed=1)
    monkeypatch.setenv("DISCORL_DISCO103", str(other))
    with pytest.raises(DiscorlError, match="not the published Disco103"):
        load_rule("disco103")
    assert load_rule(other).name == "other"


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize(
    "host", ["no-such-host.invalid", "127.0.0.1"], ids=["no name", "no answer"]
)
def test_offline_it_says_at_once_what_to_do(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_module.time, "sleep", lambda seconds: pytest.fail("it waited"))
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(DiscorlError, match="set DISCORL_DISCO103 to its path") as caught:
        fetch_disco103(f"http://{host}:{closed_port()}/x.npz", show_progress=False)
    assert str(cache_path()) in str(caught.value)


def test_an_unknown_name_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(DiscorlError, match=r"no rule is called 'disco999'.*disco103"):
        load_rule("disco999")
    with pytest.raises(DiscorlError, match="no such rule file"):
        load_rule(tmp_path / "gone.npz")


@pytest.mark.disco103
def test_the_published_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_disco103()
    assert found is not None
    assert sha(found.read_bytes()) == store.DISCO103_SHA256
    monkeypatch.setenv("DISCORL_DISCO103", str(found))
    assert load_rule("disco103").path == found
