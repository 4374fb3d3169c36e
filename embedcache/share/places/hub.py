"""A folder of a repository on the model hub, read with the connections and credentials of its client."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from embedcache.errors import InputError
from embedcache.share.places.base import Data, RangesNotServedError, Stat
from embedcache.share.retry import LaterError, RefusedError

# Names of revisions have no slash, except those that the hub makes by itself.
_REPOSITORY = re.compile(
    r"(?P<name>[^/@]+/[^/@]+)(?:@(?P<revision>refs/(?:pr|convert)/[^/]+|[^/]+))?(?:/(?P<folder>.+))?"
)
_READ_BYTES = 1 << 20
_PARTIAL, _TOO_MANY = 206, 429
_LONGEST_WAIT_SECONDS = 300.0
_GIVE = "set HF_TOKEN or run 'hf auth login'"
_SECONDS = re.compile(r"(?:^|;t=)([0-9]{1,5})\b")


class HubPlace:
    """The files of a repository below a folder.

    It can only be read: every write to a repository is a commit of its own, and a push is thousands of
    writes. A finished remote is uploaded as a folder instead.

    Args:
        where: the URL.
        kind: ``datasets`` or ``models``.
        path: ``OWNER/NAME/FOLDER`` or ``OWNER/NAME@REVISION/FOLDER``.

    Raises:
        InputError: if ``path`` names no repository.
    """

    read_only = True

    def __init__(self, where: str, kind: str, path: str) -> None:
        from huggingface_hub import constants

        self._where = where
        parts = _REPOSITORY.fullmatch(path)
        if parts is None:
            raise InputError("an hf:// URL needs a repository: hf://datasets/OWNER/NAME/FOLDER")
        name, revision = quote(parts["name"]), quote(parts["revision"] or "main", safe="")
        self._folder = parts["folder"] or ""
        self._api = f"{constants.ENDPOINT}/api/{kind}/{name}"
        self._revision = revision
        shown = name if kind == "models" else f"{kind}/{name}"
        self._files = f"{constants.ENDPOINT}/{shown}/resolve/{revision}"

    @property
    def where(self) -> str:
        """The URL."""
        return self._where

    def list(self, folder: str) -> dict[str, Stat]:
        """Return the files in ``folder``."""
        return self._listed(folder)

    def below(self, folder: str) -> dict[str, Stat]:
        """Return all files below ``folder``."""
        return self._listed(folder, "?recursive=true")

    def temporary(self, folder: str) -> dict[str, Stat]:
        """Return nothing: nothing is written there."""
        return {}

    def stat(self, path: str) -> Stat | None:
        """Return the size of a file."""
        wanted = {"paths": [self._path(path)], "expand": False}
        with _answer("POST", f"{self._api}/paths-info/{self._revision}", data=wanted) as answer:
            stats = dict(_files_in(answer))
        return stats.get(self._path(path))

    def blocks(self, path: str, size: int) -> Iterator[memoryview]:
        """Yield the bytes of a file."""
        with _answer("GET", self._url(path)) as answer:
            for block in answer.iter_bytes(size):
                yield memoryview(block)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return a part of a file."""
        if not length:
            return b""
        data = bytearray()
        with _answer("GET", self._url(path), span=f"bytes={start}-{start + length - 1}") as answer:
            if answer.status_code != _PARTIAL:
                raise RangesNotServedError(f"the server of {self.where} gives whole files alone")
            for block in answer.iter_bytes(_READ_BYTES):
                data += block
                if len(data) > length:
                    raise OSError(f"more than {length:,} bytes arrived")
        return bytes(data)

    def write(self, path: str, data: Data) -> None:
        """Refuse."""
        raise PermissionError(f"{self.where} can only be read")

    def remove(self, path: str) -> None:
        """Refuse."""
        raise PermissionError(f"{self.where} can only be read")

    def _listed(self, folder: str, query: str = "") -> dict[str, Stat]:
        """Return the files that a listing of ``folder`` has, by their paths from there."""
        stats: dict[str, Stat] = {}
        prefix = self._path(folder)
        url = f"{self._api}/tree/{self._revision}/{quote(prefix, safe='')}".rstrip("/") + query
        try:
            # The listing comes in pages, and each has a link to the next.
            while url:
                with _answer("GET", url) as answer:
                    stats |= {path[len(prefix) :].lstrip("/"): stat for path, stat in _files_in(answer)}
                    url = answer.links.get("next", {}).get("url", "")
        except FileNotFoundError:
            return {}
        return stats

    def _path(self, path: str) -> str:
        return "/".join(part for part in (self._folder, path) if part)

    def _url(self, path: str) -> str:
        return f"{self._files}/{quote(self._path(path))}"


@contextmanager
def _answer(method: str, url: str, *, span: str = "", data: dict[str, Any] | None = None) -> Iterator[Any]:
    """Yield the hub's answer, before its content is read.

    The client's own methods and its file system are not used: they wait for ever for a silent server, keep
    old listings, and read megabytes more than the part that is wanted.

    Raises:
        FileNotFoundError: if there is no such file or folder.
        OSError: for all other errors, those of the connection included.
    """
    from huggingface_hub import constants

    from embedcache.share.places import hub_client

    # Without compression, lengths and parts are those of the file.
    headers = {**hub_client.build_hf_headers(), "Accept-Encoding": "identity"}
    if span:
        headers["Range"] = span
    session = hub_client.get_session()
    seconds = constants.HF_HUB_DOWNLOAD_TIMEOUT
    try:
        with session.stream(method, url, headers=headers, data=data, timeout=seconds) as answer:
            hub_client.hf_raise_for_status(answer)
            yield answer
    except hub_client.OfflineModeIsEnabled as error:
        raise RefusedError("the hub's client is offline", "unset HF_HUB_OFFLINE") from error
    except hub_client.HfHubHTTPError as error:
        raise _meant(error) from error
    except hub_client.ConnectionFailedError as error:
        raise OSError(f"the connection failed: {str(error) or type(error).__name__}") from error


def _files_in(answer: Any) -> list[tuple[str, Stat]]:
    """Return path and size of the files that an answer lists."""
    answer.read()
    try:
        return [(file["path"], Stat(int(file["size"]))) for file in answer.json() if file["type"] == "file"]
    except (ValueError, TypeError, KeyError) as error:
        raise OSError("something else than a list of files arrived") from error


def _meant(error: Any) -> OSError:
    """Return the error that an answer of the hub stands for."""
    from embedcache.share.places import hub_client

    # The client's own message is left out: addresses of files may have a key in them.
    status = error.response.status_code
    said = ": ".join(filter(None, (f"HTTP status {status}", error.server_message)))
    if isinstance(error, hub_client.EntryNotFoundError):
        return FileNotFoundError(said)
    if isinstance(error, hub_client.GatedRepoError):
        return RefusedError(said, f"ask for access on the repository's page, and {_GIVE}")
    if isinstance(error, hub_client.RevisionNotFoundError):
        return RefusedError(said, "see to the revision, which is the part of the URL after '@'")
    if isinstance(error, hub_client.RepositoryNotFoundError) or status in (401, 403):
        return RefusedError(said, f"see to the spelling of the URL; if it is private, {_GIVE}")
    if status == _TOO_MANY:
        told = error.response.headers
        wait = _SECONDS.search(told.get("Retry-After") or told.get("RateLimit", ""))
        seconds = min(float(wait[1]) if wait else 0.0, _LONGEST_WAIT_SECONDS)
        return LaterError(said, f"run the same command again later, or {_GIVE} to ask more often", seconds)
    return OSError(said)
