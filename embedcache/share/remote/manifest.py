"""Manifests: each lists the files of one push. Only what a manifest lists counts as pushed.

A manifest is canonical JSON named by its sha256. It lists all files of the cache that was pushed, also those
that others had sent before, so that each manifest is complete in itself.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from embedcache.check.findings import Kind
from embedcache.check.inventory import Entry
from embedcache.corpus.description import checked_digest
from embedcache.fsio import canonical_json, parsed_json
from embedcache.share.remote.layout import shared_entry

MANIFEST_VERSION = 1
MOST_MANIFEST_BYTES = 64 << 20
MOST_FILES = 250_000
MOST_FILE_BYTES = 1 << 40
MOST_INDEX_BYTES = 256 << 20
"""Bytes that the row index of a shard may have: that of ten million rows."""
SPARE_INDEX_BYTES = 1024
"""Bytes that a row index may have more than its shard."""

_LONGEST_TEXT = 2000
_WHEN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_FIELDS = {"version", "files", "teachers", "corpora", "card"}
_OPTIONAL = {"by", "when", "message"}


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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

    @cached_property
    def entry(self) -> Entry:
        """What it is, by its path."""
        return shared_entry(self.path, self.bytes, self.sha256)

    def to_json(self) -> dict[str, object]:
        """Return the file as a manifest lists it."""
        rows = {"rows": self.rows} if self.rows else {}
        index = {"index": self.index.to_json()} if self.index else {}
        return {"path": self.path, "sha256": self.sha256, "bytes": self.bytes, **rows, **index}

    @classmethod
    def from_json(cls, value: object) -> SharedFile:
        """Read a file of somebody's manifest; raise ``ValueError`` where it cannot be one."""
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
        kind = file.entry.kind
        if "index" not in value:
            return file
        if kind is not Kind.SHARD:
            raise ValueError("a file with a row index that is no shard")
        return replace(file, index=_index(value["index"], size))


@dataclass(frozen=True)
class TeacherLine:
    """What a push says of a teacher, for people; nothing is decided by it.

    Attributes:
        contract: id of its contract.
        names: what it is called.
        rows: of its shards.
        model: where its model came from.
        licence: of the model, as far as declared.
    """

    contract: str
    names: tuple[str, ...]
    rows: int
    model: str
    licence: str


@dataclass(frozen=True)
class CorpusLine:
    """What a push says of a corpus, for people; nothing is decided by it.

    Attributes:
        name: its name.
        digest: its identity.
        rows: how many it has.
        views: names of its views.
        licence: of its texts, as far as declared.
    """

    name: str
    digest: str
    rows: int
    views: tuple[str, ...]
    licence: str


@dataclass(frozen=True)
class Manifest:
    """What one push put on a remote.

    Attributes:
        files: all of its files, sorted by path.
        teachers: what it says of teachers.
        corpora: what it says of corpora.
        card: sha256 of its card.
        by: who pushed, where that was given.
        when: when, in UTC, where ``by`` was given.
        message: what for, where that was given.
    """

    files: tuple[SharedFile, ...]
    teachers: tuple[TeacherLine, ...]
    corpora: tuple[CorpusLine, ...]
    card: str
    by: str = ""
    when: str = ""
    message: str = ""

    @cached_property
    def data(self) -> bytes:
        """The file."""
        return canonical_json(self.to_json())

    @cached_property
    def id(self) -> str:
        """The sha256 of the file: its name."""
        return hashlib.sha256(self.data).hexdigest()

    def to_json(self) -> dict[str, object]:
        """Return the content of the file."""
        given = {"by": self.by, "when": self.when, "message": self.message}
        return {
            "version": MANIFEST_VERSION,
            "files": [file.to_json() for file in self.files],
            "teachers": [
                {
                    "contract": one.contract,
                    "names": list(one.names),
                    "rows": one.rows,
                    "model": one.model,
                    "licence": one.licence,
                }
                for one in self.teachers
            ],
            "corpora": [
                {
                    "name": one.name,
                    "digest": one.digest,
                    "rows": one.rows,
                    "views": list(one.views),
                    "licence": one.licence,
                }
                for one in self.corpora
            ],
            "card": self.card,
            **{name: text for name, text in given.items() if text},
        }

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Manifest:
        """Read somebody's manifest, trusting nothing in it.

        Raises:
            ValueError: if it is none, or another one than ``name`` says.
        """
        if hashlib.sha256(data).hexdigest() != name:
            raise ValueError("its bytes are not those that its name is the sha256 of")
        value = parsed_json(data)
        if not isinstance(value, dict):
            raise ValueError("it is no JSON object")
        version = value.get("version")
        if type(version) is int and version > MANIFEST_VERSION:
            raise ValueError(f"it has version {version}: upgrade embedcache")
        if version != MANIFEST_VERSION or not _FIELDS <= value.keys() <= _FIELDS | _OPTIONAL:
            raise ValueError("its fields are not those of a manifest")
        listed = _list(value["files"])
        if not 0 < len(listed) <= MOST_FILES:
            raise ValueError(f"it lists {len(listed):,} files, expected 1 to {MOST_FILES:,}")
        files = tuple(map(SharedFile.from_json, listed))
        if any(file.path >= following.path for file, following in pairwise(files)):
            raise ValueError("its files are not in order, or one stands in it twice")
        when = _text(value.get("when", ""))
        if when and not _WHEN.fullmatch(when):
            raise ValueError("its time is none")
        manifest = cls(
            files,
            tuple(map(_teacher, _list(value["teachers"]))),
            tuple(map(_corpus, _list(value["corpora"]))),
            checked_digest(value["card"]),
            _text(value.get("by", "")),
            when,
            _text(value.get("message", "")),
        )
        if manifest.data != data:
            raise ValueError("it is not spelled as manifests are")
        return manifest


class Stock:
    """The union of manifests: every file that they list.

    A shard that manifests name different row indexes of has none here: one of them must be wrong.

    Args:
        manifests: what is looked at.
    """

    def __init__(self, manifests: Sequence[Manifest]) -> None:
        self.manifests = tuple(manifests)
        self._files: dict[str, dict[str, SharedFile]] = {}
        self._listings: dict[tuple[str, str], list[Manifest]] = {}
        self._doubtful: set[str] = set()
        for manifest in self.manifests:
            for file in manifest.files:
                self._add(file, manifest)

    def _add(self, file: SharedFile, manifest: Manifest) -> None:
        self._listings.setdefault((file.path, file.sha256), []).append(manifest)
        versions = self._files.setdefault(file.path, {})
        known = versions.setdefault(file.sha256, file)
        if file.index is None or file.sha256 in self._doubtful:
            return
        if known.index is None:
            versions[file.sha256] = file
        elif known.index != file.index:
            # A shard has one right index. The shard itself is vouched for by its name.
            self._doubtful.add(file.sha256)
            versions[file.sha256] = replace(known, index=None)

    def __contains__(self, file: SharedFile) -> bool:
        """Return whether a manifest lists this version of a file, with a row index where ``file`` has one."""
        listed = self._files.get(file.path, {}).get(file.sha256)
        if listed is None:
            return False
        return file.index is None or listed.index is not None or file.sha256 in self._doubtful

    def __iter__(self) -> Iterator[SharedFile]:
        """Yield all files, every version of a path, sorted."""
        for path in sorted(self._files):
            yield from self.versions(path)

    def versions(self, path: str) -> list[SharedFile]:
        """Return the versions of a file, by digest; several where pushes differ."""
        versions = self._files.get(path, {})
        return [versions[digest] for digest in sorted(versions)]

    def listing(self, file: SharedFile) -> list[Manifest]:
        """Return the manifests that list a version of a file, with whatever row index."""
        return list(self._listings.get((file.path, file.sha256), ()))

    def shards(self, contract_id: str) -> list[SharedFile]:
        """Return all shards of a teacher."""
        return list(self._of_teachers.get((contract_id, Kind.SHARD), ()))

    def codebooks(self, contract_id: str) -> dict[str, SharedFile]:
        """Return all codebooks of a teacher, by their sha256."""
        return {file.sha256: file for file in self._of_teachers.get((contract_id, Kind.CODEBOOK), ())}

    @cached_property
    def _of_teachers(self) -> Mapping[tuple[str, Kind], Sequence[SharedFile]]:
        """The files of teachers, by contract id and kind, sorted."""
        files: dict[tuple[str, Kind], list[SharedFile]] = {}
        for file in self:
            if file.entry.teacher:
                files.setdefault((file.entry.teacher, file.entry.kind), []).append(file)
        return files

    @cached_property
    def teacher_names(self) -> Mapping[str, frozenset[str]]:
        """The contract ids that have files, and the names of each."""
        teachers: dict[str, set[str]] = {}
        for file in self:
            if file.entry.teacher:
                names = teachers.setdefault(file.entry.teacher, set())
                if "/names/" in file.path:
                    names.add(file.entry.stem)
        return {contract: frozenset(names) for contract, names in teachers.items()}

    @cached_property
    def corpus_names(self) -> tuple[str, ...]:
        """The names of corpora that have files, sorted."""
        return tuple(sorted({file.entry.corpus for file in self} - {""}))


def _index(value: object, shard_bytes: int) -> IndexObject:
    found = _fields(value, {"sha256", "bytes"})
    size = found["bytes"]
    # It holds a shard without its vectors, and digests of those.
    if type(size) is not int or not 0 < size <= min(shard_bytes + SPARE_INDEX_BYTES, MOST_INDEX_BYTES):
        raise ValueError(f"a row index of {repr(size)[:40]} bytes for a shard of {shard_bytes:,}")
    return IndexObject(checked_digest(found["sha256"]), size)


def _list(value: object) -> list[Any]:
    if not isinstance(value, list) or len(value) > MOST_FILES:
        raise ValueError("it holds something else where a list belongs")
    return value


def _text(value: object) -> str:
    # It is shown on terminals.
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT or not value.isprintable():
        raise ValueError("it holds something else where a line of text belongs")
    return value


def _rows(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 40:
        raise ValueError("it holds something else where a number of rows belongs")
    return value


def _fields(value: object, names: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != names:
        raise ValueError(f"it holds something else where {', '.join(sorted(names))} belong")
    return value


def _teacher(value: object) -> TeacherLine:
    found = _fields(value, {"contract", "names", "rows", "model", "licence"})
    return TeacherLine(
        checked_digest(found["contract"]),
        tuple(map(_text, _list(found["names"]))),
        _rows(found["rows"]),
        _text(found["model"]),
        _text(found["licence"]),
    )


def _corpus(value: object) -> CorpusLine:
    found = _fields(value, {"name", "digest", "rows", "views", "licence"})
    return CorpusLine(
        _text(found["name"]),
        checked_digest(found["digest"]),
        _rows(found["rows"]),
        tuple(map(_text, _list(found["views"]))),
        _text(found["licence"]),
    )
