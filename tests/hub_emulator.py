"""A model hub on the loopback device: repositories are folders, and their files are the latest commit.

It has no xet, so clients need ``HF_HUB_DISABLE_XET=1`` beside ``HF_ENDPOINT``, before they are imported.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from remote_servers import Quiet, http_server

LARGE = 10_000
"""Bytes from which the hub takes a file by LFS."""


class _Hub(Quiet):
    """``directory`` has ``datasets/OWNER/NAME``, ``models/OWNER/NAME``, uploads, and a log of commits."""

    def do_GET(self) -> None:  # noqa: N802 - the name that the server looks for
        path, _, query = self.path.partition("?")
        words = unquote(path).strip("/").split("/")
        if words[0] != "api":
            # datasets/OWNER/NAME/resolve/REVISION/PATH, of a model without the first word
            words = words if words[0] == "datasets" else ["models", *words]
            if self._repository(words, 0).joinpath(*words[5:]).is_file():
                self.path = "/" + "/".join([*words[:3], *words[5:]])
                return super().do_GET()
            return self._missing()
        base = self._repository(words)
        if not base.is_dir():
            return self._missing("RepoNotFound")
        if len(words) == 4:
            return self._answer({"id": "/".join(words[2:]), "sha": "c0ffee" + "0" * 34, "siblings": []})
        if words[4] == "revision":
            return self._answer({"id": "/".join(words[2:4]), "sha": _commit_of(base), "siblings": []})
        # api/datasets/OWNER/NAME/tree/REVISION/PATH
        folder = base.joinpath(*words[6:])
        if words[4] != "tree" or not folder.is_dir():
            return self._missing()
        found = folder.glob("**/*" if "recursive=true" in query.lower() else "*")
        return self._answer([_entry(base, one) for one in found])

    def do_HEAD(self) -> None:  # noqa: N802
        words = unquote(self.path.partition("?")[0]).strip("/").split("/")
        words = words if words[0] == "datasets" else ["models", *words]
        base = self._repository(words, 0)
        path = base.joinpath(*words[5:])
        if not path.is_file():
            self._missing()
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("X-Repo-Commit", _commit_of(base))
        self.send_header("ETag", f'"{hashlib.sha256(path.read_bytes()).hexdigest()}"')
        self.send_header("Content-Length", str(path.stat().st_size))
        self.end_headers()

    def do_POST(self) -> None:  # noqa: N802
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        words = unquote(self.path.partition("?")[0]).strip("/").split("/")
        if words == ["api", "validate-yaml"]:
            return self._answer({"errors": [], "warnings": []})
        if words == ["api", "repos", "create"]:
            asked = json.loads(data)
            kind = f"{asked.get('type') or 'model'}s"
            base = Path(self.directory, kind, asked["organization"], asked["name"])
            base.mkdir(parents=True, exist_ok=True)
            (base / ".gitattributes").touch()
            self._log(f"create {base.relative_to(self.directory)} {asked.get('visibility')}")
            return self._answer({"url": self._url(base)})
        if words[-1] == "batch":
            return self._answer(
                {"transfer": "basic", "objects": [self._upload(one) for one in _objects(data)]}
            )
        base = self._repository(words)
        if not base.is_dir():
            return self._missing("RepoNotFound")
        act = {"preupload": self._preupload, "commit": self._commit, "paths-info": self._paths_info}[words[4]]
        return act(base, data)

    def do_PUT(self) -> None:  # noqa: N802
        data = self.rfile.read(int(self.headers["Content-Length"]))
        assert hashlib.sha256(data).hexdigest() == self.path.rpartition("/")[2]
        (self._uploads() / self.path.rpartition("/")[2]).write_bytes(data)
        self._answer({})

    def _preupload(self, base: Path, data: bytes) -> None:
        files = [
            {
                "path": one["path"],
                "uploadMode": "lfs" if one["size"] > LARGE else "regular",
                "shouldIgnore": False,
            }
            for one in json.loads(data)["files"]
        ]
        self._answer({"files": files})

    def _commit(self, base: Path, data: bytes) -> None:
        lines = [json.loads(line) for line in data.splitlines()]
        self._log(f"commit {len(lines) - 1} files: {lines[0]['value']['summary']}")
        for line in lines[1:]:
            value, path = line["value"], base / line["value"]["path"]
            if line["key"] == "deletedFile":
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if line["key"] == "lfsFile":
                shutil.copyfile(self._uploads() / value["oid"], path)
            else:
                path.write_bytes(base64.b64decode(value["content"]))
        self._answer({"commitUrl": f"{self._url(base)}/commit/1", "commitOid": "c0ffee" + "0" * 34})

    def _paths_info(self, base: Path, data: bytes) -> None:
        paths = [base / path for path in parse_qs(data.decode())["paths"]]
        self._answer([_entry(base, path) for path in paths if path.exists()])

    def _upload(self, one: dict[str, Any]) -> dict[str, Any]:
        href = f"http://{self.headers['Host']}/upload/{one['oid']}"
        return {**one, "actions": {"upload": {"href": href}}}

    def _repository(self, words: list[str], start: int = 1) -> Path:
        return Path(self.directory).joinpath(*words[start : start + 3])

    def _url(self, base: Path) -> str:
        name = base.relative_to(self.directory).as_posix().removeprefix("models/")
        return f"http://{self.headers['Host']}/{name}"

    def _uploads(self) -> Path:
        folder = Path(self.directory, "uploads")
        folder.mkdir(exist_ok=True)
        return folder

    def _log(self, line: str) -> None:
        with Path(self.directory, "log.txt").open("a") as log:
            print(line, file=log)

    def _missing(self, code: str = "EntryNotFound") -> None:
        self._answer({"error": "not found"}, HTTPStatus.NOT_FOUND, code)

    def _answer(self, value: object, status: int = HTTPStatus.OK, code: str = "") -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _commit_of(base: Path) -> str:
    """Return the name of a repository's only commit, which changes with its files."""
    files = sorted(path for path in base.rglob("*") if path.is_file())
    names = b"".join(path.relative_to(base).as_posix().encode() + path.read_bytes() for path in files)
    return hashlib.sha1(names, usedforsecurity=False).hexdigest()


def _objects(data: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(data)["objects"]
    return found


def _entry(base: Path, path: Path) -> dict[str, object]:
    described = path.stat()
    return {
        "type": "file" if path.is_file() else "directory",
        "path": path.relative_to(base).as_posix(),
        "size": described.st_size if path.is_file() else 0,
        "oid": "0" * 40,
    }


@contextmanager
def hub_server(folder: Path) -> Iterator[dict[str, str]]:
    """Serve the repositories below ``folder`` as the hub does; yield the environment of its clients."""
    folder.mkdir(parents=True, exist_ok=True)
    with http_server(folder, _Hub) as url:
        yield {**os.environ, "HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": "hf_loopback"}
