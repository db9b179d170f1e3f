"""A stand-in for the hub on 127.0.0.1: the part of its HTTP interface that sharing uses.

It keeps repositories in memory: commits of small files, large files by the LFS protocol, and
downloads by revision. What real servers do besides, such as Xet, is not in it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_of_the_stand_in"


class StandIn(ThreadingHTTPServer):
    """Repositories by name: whether they are private, and their files."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.objects: dict[str, bytes] = {}
        self.messages: list[str] = []
        self.served: list[str] = []
        self.claimed: dict[str, int] = {}
        """Sizes to claim instead of the true ones, by the name of the file."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def commit_of(self, repo: str) -> str:
        content = json.dumps({k: hashlib.sha1(v).hexdigest() for k, v in self.files[repo].items()})
        return hashlib.sha1(content.encode()).hexdigest()


@contextmanager
def serving() -> Iterator[StandIn]:
    server = StandIn()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    server: StandIn  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self._body()
        if self.path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._json({"error": "Invalid username or password."}, 401)
        if self.path == "/api/repos/create":
            return self._create(json.loads(body))
        if match := re.fullmatch(r"/api/models/(.+)/preupload/main", self.path):
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".npz") else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            return self._json({"files": files})
        if re.fullmatch(r"/(.+)\.git/info/lfs/objects/batch", self.path):
            objects = [
                one | {"actions": {"upload": {"href": f"{self.server.url}/lfs/{one['oid']}"}}}
                for one in json.loads(body)["objects"]
            ]
            return self._json({"transfer": "basic", "objects": objects})
        if match := re.fullmatch(r"/api/models/(.+)/commit/main", self.path):
            return self._commit(match[1], body)
        return self._json({"error": "not found"}, 404)

    def do_PUT(self) -> None:
        data = self._body()
        assert hashlib.sha256(data).hexdigest() == self.path.removeprefix("/lfs/")
        self.server.objects[self.path.removeprefix("/lfs/")] = data
        self._json({})

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            return self._info(match[1], match[2])
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._resolve(*match.groups())
        return self._json({"error": "not found"}, 404)

    do_HEAD = do_GET  # noqa: N815

    def _create(self, asked: dict[str, Any]) -> None:
        repo = f"{asked.get('organization') or 'me'}/{asked['name']}"
        status = 409 if repo in self.server.files else 200
        if status == 200:
            self.server.files[repo] = {}
            self.server.private[repo] = asked.get("visibility") == "private"
        self._json({"url": f"{self.server.url}/{repo}", "name": repo}, status)

    def _commit(self, repo: str, body: bytes) -> None:
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                self.server.messages.append(value["summary"])
            elif line["key"] == "file":
                self.server.files[repo][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.server.files[repo][value["path"]] = self.server.objects[value["oid"]]
        oid = self.server.commit_of(repo)
        url = f"{self.server.url}/{repo}/commit/{oid}"
        self._json({"commitUrl": url, "commitOid": oid, "success": True})

    def _info(self, repo: str, revision: str | None) -> None:
        if not self._may_see(repo, revision):
            return
        siblings = []
        for name, data in self.server.files[repo].items():
            size = self.server.claimed.get(name, len(data))
            one: dict[str, Any] = {"rfilename": name, "size": size, "blobId": "0" * 40}
            if name.endswith(".npz"):
                oid = hashlib.sha256(data).hexdigest()
                one["lfs"] = {"sha256": oid, "size": size, "pointerSize": 130}
            siblings.append(one)
        commit = self.server.commit_of(repo)
        self._json({"id": repo, "modelId": repo, "sha": commit, "siblings": siblings, "tags": []})

    def _resolve(self, repo: str, revision: str, name: str) -> None:
        if not self._may_see(repo, revision):
            return
        if name not in self.server.files[repo]:
            self._json({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
            return
        data = self.server.files[repo][name]
        if self.command == "GET":
            self.server.served.append(name)
        headers = {
            "X-Repo-Commit": self.server.commit_of(repo),
            "ETag": f'"{hashlib.sha256(data).hexdigest()}"',
        }
        self._send(data, 200, headers)

    def _may_see(self, repo: str, revision: str | None) -> bool:
        is_known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if repo not in self.server.files or (self.server.private[repo] and not is_known):
            self._json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
            return False
        if revision not in (None, "main", self.server.commit_of(repo)):
            found = {"X-Error-Code": "RevisionNotFound"}
            self._json({"error": "Invalid rev id"}, 404, found)
            return False
        return True

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def _json(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._send(json.dumps(content).encode(), status, headers)

    def _send(self, data: bytes, status: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
