"""A file of a cache as a manifest lists it, and how it is read from somebody's manifest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from embedcache.check.findings import Kind
from embedcache.check.inventory import Entry
from embedcache.corpus.description import checked_digest
from embedcache.fsio import canonical_json, parsed_json
from embedcache.share.remote.layout import shared_entry

MOST_FILE_BYTES = 1 << 40
MOST_INDEX_BYTES = 256 << 20
"""Bytes that the row index of a shard may have: that of ten million rows."""
SPARE_INDEX_BYTES = 1024
"""Bytes that a row index may have more than its shard."""

# The longest path that a cache has takes less than 1,000 bytes, and all the rest less than 400.
_MOST_SPELLED_BYTES = 4096


@dataclass(frozen=True, slots=True)
class IndexObject:
    """The row index of a shard, an object of its own: see :mod:`embedcache.share.rows.shard_index`.

    Attributes:
        sha256: of its bytes.
        bytes: how many there are.
    """

    sha256: str
    bytes: int

    def to_json(self) -> dict[str, object]:
        """Return the object as a manifest names it."""
        return {"sha256": self.sha256, "bytes": self.bytes}

    @classmethod
    def from_json(cls, value: object, shard_bytes: int) -> IndexObject:
        """Read the row index that somebody's manifest names.

        Args:
            value: what the manifest says.
            shard_bytes: the size of the shard.

        Raises:
            ValueError: if no such shard has such a row index.
        """
        if not isinstance(value, dict) or value.keys() != {"sha256", "bytes"}:
            raise ValueError("it holds something else where bytes, sha256 belong")
        size = value["bytes"]
        # It holds a shard without its vectors, and digests of those.
        if type(size) is not int or not 0 < size <= min(shard_bytes + SPARE_INDEX_BYTES, MOST_INDEX_BYTES):
            raise ValueError(f"a row index of {repr(size)[:40]} bytes for a shard of {shard_bytes:,}")
        return cls(checked_digest(value["sha256"]), size)


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file of a cache on a remote.

    Attributes:
        path: where it lies in a cache.
        sha256: of its bytes.
        bytes: how many there are.
        rows: of a shard or a part of a corpus; 0 for all others.
        index: of a shard, its row index, where there is one.
    """

    path: str
    sha256: str
    bytes: int
    rows: int = 0
    index: IndexObject | None = None
    _entry: Entry | None = field(default=None, init=False, repr=False, compare=False)

    def __hash__(self) -> int:
        """Return a hash of what tells files apart; that of all fields takes three times as long."""
        return hash((self.path, self.sha256))

    @property
    def entry(self) -> Entry:
        """What it is, by its path.

        Raises:
            ValueError: if no shared file of a cache has this path, digest and size.
        """
        entry = self._entry or shared_entry(self.path, self.bytes, self.sha256)
        object.__setattr__(self, "_entry", entry)
        return entry

    def to_json(self) -> dict[str, object]:
        """Return the file as a manifest lists it."""
        rows = {"rows": self.rows} if self.rows else {}
        index = {"index": self.index.to_json()} if self.index else {}
        return {"path": self.path, "sha256": self.sha256, "bytes": self.bytes, **rows, **index}

    @classmethod
    def from_json(cls, value: object) -> SharedFile:
        """Read a file of somebody's manifest.

        Raises:
            ValueError: if no file can be like that.
        """
        if not isinstance(value, dict) or not {"path", "sha256", "bytes"} <= value.keys():
            raise ValueError("a file without path, sha256 or bytes")
        if unknown := value.keys() - {"path", "sha256", "bytes", "rows", "index"}:
            raise ValueError(f"a file with the fields {', '.join(sorted(map(repr, unknown)))[:80]}")
        path, size, rows = value["path"], value["bytes"], value.get("rows", 0)
        if not isinstance(path, str):
            raise ValueError("a file whose path is no text")
        if type(size) is not int or not 0 < size <= MOST_FILE_BYTES:
            raise ValueError(f"a file of {repr(size)[:40]} bytes")
        if type(rows) is not int or not 0 <= rows < 1 << 40:
            raise ValueError(f"a file of {repr(rows)[:40]} rows")
        file = cls(path, checked_digest(value["sha256"]), size, rows)
        # Looks at path, digest and size.
        entry = file.entry
        if "index" in value:
            if entry.kind is not Kind.SHARD:
                raise ValueError("a file with a row index that is no shard")
            file = replace(file, index=IndexObject.from_json(value["index"], size))
            object.__setattr__(file, "_entry", entry)
        return file


class KnownFiles:
    """Reads files from the bytes of manifests: the same bytes become the same object, checked once.

    Most files stand in every manifest of a remote, because each push lists all files of its cache.
    """

    def __init__(self) -> None:
        self._files: dict[bytes, SharedFile] = {}

    def read(self, spellings: Iterable[bytes]) -> tuple[SharedFile, ...]:
        """Return the files that are spelled so.

        Args:
            spellings: the canonical JSON of each file, without its braces.

        Raises:
            ValueError: if one is no file, or is spelled otherwise.
        """
        known = self._files
        return tuple([known.get(spelled) or self._checked(spelled) for spelled in spellings])

    def _checked(self, spelled: bytes) -> SharedFile:
        if len(spelled) > _MOST_SPELLED_BYTES:
            raise ValueError(
                f"a file is described in {len(spelled):,} bytes, expected {_MOST_SPELLED_BYTES:,} at most"
            )
        whole = b"{%b}" % spelled
        file = SharedFile.from_json(parsed_json(whole))
        if canonical_json(file.to_json()) != whole:
            raise ValueError("it is not spelled as manifests are")
        self._files[spelled] = file
        return file
