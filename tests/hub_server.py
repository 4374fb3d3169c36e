"""A server on the loopback device that answers as the model hub does where files of a repository are read."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

_API = re.compile(r"/api/(?P<kind>models|datasets)/(?P<repo>[^/]+/[^/]+)(?:/(?P<rest>.*))?")
_FILE = re.compile(r"/(?P<kind>datasets/)?(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
_RANGE = re.compile(r"bytes=([0-9]+)-([0-9]*)")
COMMIT = "c0ffee" + "0" * 34


@dataclass
class Asked:
    """A request that has come.

    Attributes:
        host: ``hub``, or ``storage`` for the other server, which large files are redirected to.
        method: of HTTP.
        path: with the query, as it came.
        token: what the client says that it is, if anything.
        span: the part that it wants, if it says so.
        sent: bytes of the body that were sent.
    """

    host: str
    method: str
    path: str
    token: str
    span: str
    sent: int = 0


@dataclass
class Fault:
    """An answer that is given instead of the right one.

    Attributes:
        part: what the path of the request has in it.
        times: how often.
        status: of the answer; 0 cuts the right one off in the middle of its body, -1 never answers.
        headers: of the answer.
        body: of the answer.
    """

    part: str
    times: int
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass
class Hub:
    """What the hub has, and what has become of it.

    Attributes:
        folder: with ``datasets/OWNER/NAME`` and ``models/OWNER/NAME``, each a repository.
        url: where it is.
        private: repositories, as ``OWNER/NAME``, that need a token.
        token: the one that it knows.
        page: how many entries of a folder are listed at once.
        large: files of so many bytes and more lie on the other server.
        faults: what is to go wrong.
        asked: all that has been asked for.
        revisions: of every repository.
    """

    folder: Path
    url: str = ""
    storage: str = ""
    private: set[str] = field(default_factory=set)
    token: str = "hf_right"  # noqa: S105 - known to nobody else
    page: int = 1000
    large: int = 1000
    faults: list[Fault] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    revisions: tuple[str, ...] = ("main", "v1")
    closing: threading.Event = field(default_factory=threading.Event)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    host = "hub"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has there
        pass

    def do_GET(self) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        self.seen = Asked(self.host, self.command, self.path, token, self.headers.get("Range", ""))
        self.hub.asked.append(self.seen)
        self.cut = False
        for fault in self.hub.faults:
            if fault.times and fault.part in unquote(self.path):
                fault.times -= 1
                if fault.status > 0:
                    return self.answer(fault.status, fault.body, fault.headers)
                self.cut = True
                if fault.status < 0:
                    self.hub.closing.wait()
                    return None
        return self.right()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.do_GET()

    def right(self) -> None:
        path = urlsplit(self.path).path
        if match := _API.fullmatch(path):
            return self.api(match["kind"], match["repo"], match["rest"] or "")
        if match := _FILE.fullmatch(path):
            kind = "datasets" if match["kind"] else "models"
            return self.file(kind, match["repo"], unquote(match["revision"]), unquote(match["path"]))
        return self.refuse(404, "RepoNotFound", "Repository not found")

    def may_read(self, kind: str, repo: str, revision: str) -> bool:
        known = self.seen.token == self.hub.token
        if self.seen.token and not known:
            self.refuse(401, "", "Invalid credentials in Authorization header")
        elif not (self.hub.folder / kind / repo).is_dir() or (repo in self.hub.private and not known):
            # Whoever may not know of it is not told that it is there.
            self.refuse(404 if known else 401, "RepoNotFound", "Repository not found")
        elif revision not in (*self.hub.revisions, COMMIT):
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return True
        return False

    def api(self, kind: str, repo: str, rest: str) -> None:
        what, _, more = rest.partition("/")
        revision, _, path = more.partition("/")
        revision, path = unquote(revision) or "main", unquote(path)
        if not self.may_read(kind, repo, revision):
            return None
        root = self.hub.folder / kind / repo
        if what in ("", "revision"):
            return self.json({"id": repo, "sha": COMMIT, "private": repo in self.hub.private, "siblings": []})
        if what == "paths-info":
            data = self.rfile.read(int(self.headers["Content-Length"])).decode()
            wanted = [root / one for one in parse_qs(data)["paths"]]
            return self.json([_entry(root, one) for one in wanted if one.exists()])
        return self.tree(root, path) if what == "tree" else self.refuse(404, "", "Not found")

    def tree(self, root: Path, path: str) -> None:
        query = parse_qs(urlsplit(self.path).query)
        folder, start = root / path, int(query.get("cursor", ["0"])[0])
        if not folder.is_dir():
            return self.refuse(404, "EntryNotFound", f'Path "{path}" does not exist on "main"')
        deep = query.get("recursive", ["false"])[0].lower() == "true"
        found = sorted(folder.rglob("*") if deep else folder.iterdir())
        rest = found[start + self.hub.page :]
        here = f"{self.hub.url}{urlsplit(self.path).path}?recursive={deep}&cursor={start + self.hub.page}"
        link = {"Link": f'<{here}>; rel="next"'} if rest else {}
        return self.json([_entry(root, one) for one in found[start : start + self.hub.page]], link)

    def file(self, kind: str, repo: str, revision: str, path: str) -> None:
        if not self.may_read(kind, repo, revision):
            return None
        place = self.hub.folder / kind / repo / path
        if not place.is_file():
            return self.refuse(404, "EntryNotFound", "Entry not found")
        data = place.read_bytes()
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
        if len(data) < self.hub.large:
            return self.part(data, headers)
        linked = {"X-Linked-Size": str(len(data)), "X-Linked-Etag": headers["ETag"]}
        where = f"{self.hub.storage}/{place.relative_to(self.hub.folder)}?signature=secret"
        return self.answer(302, b"", {**headers, **linked, "Location": where})

    def part(self, data: bytes, headers: dict[str, str]) -> None:
        match = _RANGE.fullmatch(self.seen.span)
        if match is None:
            return self.answer(200, data, headers)
        start, end = int(match[1]), min(int(match[2] or len(data)) + 1, len(data))
        if start >= len(data):
            return self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        headers = {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}
        return self.answer(206, data[start:end], headers)

    def json(self, value: object, headers: dict[str, str] | None = None) -> None:
        self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def refuse(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})}
        self.answer(status, json.dumps({"error": message}).encode(), headers)

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            body = body[: len(body) // 2] if self.cut else body
            self.seen.sent = len(body)
            self.wfile.write(body)


class _Storage(_Handler):
    host = "storage"

    def right(self) -> None:
        # An address with a signature in it is all that is needed here.
        assert self.path.endswith("?signature=secret")
        self.part((self.hub.folder / unquote(urlsplit(self.path).path)[1:]).read_bytes(), {})


def _entry(root: Path, path: Path) -> dict[str, object]:
    name = path.relative_to(root).as_posix()
    oid = hashlib.sha1(name.encode()).hexdigest()  # noqa: S324 - as git does
    if path.is_dir():
        return {"type": "directory", "oid": oid, "size": 0, "path": name}
    return {"type": "file", "oid": oid, "size": path.stat().st_size, "path": name}


@contextmanager
def hub_server(folder: Path) -> Iterator[Hub]:
    """Serve the repositories in ``folder``."""
    hub = Hub(folder)
    kinds = [type(kind.__name__, (kind,), {"hub": hub}) for kind in (_Handler, _Storage)]
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), kind) for kind in kinds]
    hub.url, hub.storage = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    threads = [threading.Thread(target=server.serve_forever, args=(0.05,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        hub.closing.set()
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()
