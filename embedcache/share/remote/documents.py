"""The JSON documents of a remote, read by the readers of a cache before anything of them enters one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from embedcache.cache import read_contract, read_origin
from embedcache.check.verify.documents import told
from embedcache.contract import Contract
from embedcache.corpus.description import CorpusInfo, read_info
from embedcache.corpus.view_record import ViewRecord, read_record
from embedcache.errors import CacheFormatError, CorruptCacheError, RemoteError
from embedcache.fsio import read_regular
from embedcache.share.limits import Allowance
from embedcache.share.remote.download import read_object
from embedcache.share.remote.manifest import SharedFile, Stock
from embedcache.share.remote.remote import Remote

T = TypeVar("T")

MOST_BYTES = 512 << 20
"""Bytes that the documents of one pull may have together; they are held in memory."""


class Documents:
    """Reads documents, each of them once.

    Args:
        remote: where they lie.
        folder: a temporary folder, where each is put for its reader; nothing of a cache.
        allowance: counts what is fetched; default: nobody does.
        kept: folders in which documents may lie that are on the remote too, at the same paths. These are not
            fetched.
    """

    def __init__(
        self,
        remote: Remote,
        folder: Path,
        allowance: Allowance | None = None,
        kept: Sequence[Path] = (),
    ) -> None:
        self._remote, self._folder = remote, folder
        self._allowance, self._kept = allowance or Allowance(), kept
        self._read: dict[str, bytes] = {}
        self._left = MOST_BYTES

    def fetch(self, files: list[SharedFile]) -> None:
        """Read many at once.

        Raises:
            InputError: if they are more than may be fetched.
            RemoteError: if one cannot be had, is not what its digest says, or they are too many.
        """
        wanted = {file.sha256: file for file in files if file.sha256 not in self._read}
        self._left -= sum(file.bytes for file in wanted.values())
        if self._left < 0:
            raise RemoteError(
                f"the descriptions on {self._remote.where} have more than {MOST_BYTES:,} bytes together: "
                "pull some corpora or teachers alone, with --corpus and --teacher"
            )
        kept = {digest: self._kept_data(file) for digest, file in wanted.items()}
        self._read.update({digest: data for digest, data in kept.items() if data})
        left = {digest: file for digest, file in wanted.items() if digest not in self._read}
        self._allowance.read_documents(sum(file.bytes for file in left.values()))
        documents = self._remote.in_threads(self._fetch, left.values())
        self._read.update(zip(left, documents, strict=True))

    def data(self, file: SharedFile) -> bytes:
        """Return the bytes of a document.

        Raises:
            RemoteError: as :meth:`fetch`.
        """
        if file.sha256 not in self._read:
            self.fetch([file])
        return self._read[file.sha256]

    def contract(self, file: SharedFile) -> Contract:
        """Return a contract.

        Raises:
            RemoteError: as :meth:`fetch`, or if the document is refused.
        """
        return self._parsed(file, read_contract)

    def origin(self, file: SharedFile) -> dict[str, str]:
        """Return where a teacher came from.

        Raises:
            RemoteError: as :meth:`fetch`, or if the document is refused.
        """
        return self._parsed(file, read_origin)

    def info(self, file: SharedFile) -> CorpusInfo:
        """Return the description of a corpus or a view.

        Raises:
            RemoteError: as :meth:`fetch`, or if the document is refused.
        """
        return self._parsed(file, lambda path: read_info(path.parent))

    def record(self, file: SharedFile) -> ViewRecord:
        """Return the record of a view.

        Raises:
            RemoteError: as :meth:`fetch`, or if the document is refused.
        """
        return self._parsed(file, lambda path: read_record(path.parent))

    def _parsed(self, file: SharedFile, read: Callable[[Path], T]) -> T:
        data = self.data(file)
        path = self._folder / file.sha256 / file.path
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        try:
            return read(path)
        except (CorruptCacheError, CacheFormatError) as error:
            raise RemoteError(
                f"{file.path} of {self._remote.where} is refused because it {told(error, path)}; it is "
                "damaged, hostile or of a newer embedcache; pull others alone, with --corpus and --teacher"
            ) from error

    def _kept_data(self, file: SharedFile) -> bytes:
        """Return a document from where it lies on this machine; nothing where it does not."""
        for folder in self._kept:
            try:
                data = read_regular(folder / file.path, most=file.bytes)
            except (OSError, ValueError):
                continue
            if hashlib.sha256(data).hexdigest() == file.sha256:
                return data
        return b""

    def _fetch(self, file: SharedFile) -> bytes:
        return read_object(self._remote, file, file.path)


def listed_by(stock: Stock, file: SharedFile) -> str:
    """Return who pushed a version of a file, for messages."""
    manifests = stock.listing(file)
    manifest = next((each for each in manifests if each.by), manifests[0])
    by = f", pushed by {manifest.by} {manifest.when[:10]}" if manifest.by else ""
    return f"manifest {manifest.id[:12]}{by}"
