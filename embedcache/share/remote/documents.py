"""The JSON documents of a remote, read by the readers of a cache before anything of them enters one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from embedcache.cache import read_contract, read_origin
from embedcache.check.verify.documents import told
from embedcache.contract import Contract
from embedcache.corpus.description import CorpusInfo, read_info
from embedcache.corpus.view_record import ViewRecord, read_record
from embedcache.errors import CacheFormatError, CorruptCacheError, RemoteError
from embedcache.share.remote.layout import MOST_DOCUMENT_BYTES
from embedcache.share.remote.manifest import SharedFile, Stock
from embedcache.share.remote.remote import BLOCK_BYTES, Remote, object_path
from embedcache.share.retry import RemediedError, retrying

T = TypeVar("T")

MOST_BYTES = 512 << 20
"""Bytes that the documents of one pull may have together; they are held in memory."""


def unlike(path: str, arrived: int, expected: int, what: str = "other bytes arrived") -> RemediedError:
    """Return the error for bytes that are not those that were asked for; they are asked for again.

    Args:
        path: of the object, on the remote.
        arrived: how many bytes came.
        expected: how many were asked for.
        what: what has happened, where so many came.
    """
    again = "push again from a cache that has it"
    if arrived == expected:
        return RemediedError(
            what,
            f"{path} is damaged there: delete that file with the storage's own tools, or all such with "
            f"'embedcache remote verify REMOTE --delete-damaged', then {again}",
        )
    came = f"{arrived:,} of" if arrived < expected else "more than"
    return RemediedError(
        f"{came} {expected:,} bytes arrived",
        f"run the same command again; if that goes on, {path} has another size there than it should: "
        f"{again}, which writes it anew",
    )


class Documents:
    """Reads documents, each of them once.

    Args:
        remote: where they lie.
        folder: a temporary folder, where each is put for its reader; nothing of a cache.
    """

    def __init__(self, remote: Remote, folder: Path) -> None:
        self._remote, self._folder = remote, folder
        self._read: dict[str, bytes] = {}
        self._left = MOST_BYTES

    def fetch(self, files: list[SharedFile]) -> None:
        """Read many at once.

        Raises:
            RemoteError: if one cannot be had, is not what its digest says, or they are too many.
        """
        wanted = {file.sha256: file for file in files if file.sha256 not in self._read}
        self._left -= sum(file.bytes for file in wanted.values())
        if self._left < 0:
            raise RemoteError(
                f"the descriptions on {self._remote.where} have more than {MOST_BYTES:,} bytes together: "
                "pull some corpora or teachers alone, with --corpus and --teacher"
            )
        found = self._remote.in_threads(self._fetch, wanted.values())
        self._read.update(zip(wanted, found, strict=True))

    def data(self, file: SharedFile) -> bytes:
        """Return the bytes of a document."""
        if file.sha256 not in self._read:
            self.fetch([file])
        return self._read[file.sha256]

    def contract(self, file: SharedFile) -> Contract:
        """Return a contract."""
        return self._parsed(file, read_contract)

    def origin(self, file: SharedFile) -> dict[str, str]:
        """Return where a teacher came from."""
        return self._parsed(file, read_origin)

    def info(self, file: SharedFile) -> CorpusInfo:
        """Return the description of a corpus or a view."""
        return self._parsed(file, lambda path: read_info(path.parent))

    def record(self, file: SharedFile) -> ViewRecord:
        """Return the record of a view."""
        return self._parsed(file, lambda path: read_record(path.parent))

    def _parsed(self, file: SharedFile, read: Callable[[Path], T]) -> T:
        data = self.data(file)
        path = self._folder / file.sha256 / file.path
        if not path.exists():
            path.parent.mkdir(parents=True)
            path.write_bytes(data)
        try:
            return read(path)
        except (CorruptCacheError, CacheFormatError) as error:
            raise RemoteError(
                f"{file.path} of {self._remote.where} is refused because it {told(error, path)}; it is "
                "damaged, hostile or of a newer embedcache; pull others alone, with --corpus and --teacher"
            ) from error

    def _fetch(self, file: SharedFile) -> bytes:
        path = object_path(file.sha256)

        def act() -> bytes:
            found = bytearray()
            for block in self._remote.place.blocks(path, BLOCK_BYTES):
                found += block
                if len(found) > min(file.bytes, MOST_DOCUMENT_BYTES):
                    raise unlike(path, len(found), file.bytes)
            if hashlib.sha256(found).hexdigest() != file.sha256:
                raise unlike(path, len(found), file.bytes)
            return bytes(found)

        try:
            return retrying(f"read {file.path}", self._remote.where, act, self._remote.stop)
        except FileNotFoundError:
            raise missing(self._remote, file) from None


def missing(remote: Remote, file: SharedFile) -> RemoteError:
    """Return the error for an object that a manifest lists and the remote does not have."""
    return RemoteError(
        f"{object_path(file.sha256)} of {remote.where}, which is {file.path}, is not there though a manifest "
        "lists it: push it again from a cache that has it"
    )


def listed_by(stock: Stock, file: SharedFile) -> str:
    """Return who pushed a version of a file, for messages."""
    manifests = stock.listing(file)
    who = next((one for one in manifests if one.by), manifests[0])
    by = f", pushed by {who.by} {who.when[:10]}" if who.by else ""
    return f"manifest {who.id[:12]}{by}"
