"""Manifests: each lists the files of one push. Only what a manifest lists counts as pushed.

A manifest is canonical JSON named by its sha256. It lists all files of the cache that was pushed, also those
that others had sent before, so that each manifest is complete in itself; and it says which of them were news.
What stays of a push that is taken back is listed by another one: see :mod:`embedcache.share.remote.news`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

from embedcache.check.findings import Kind
from embedcache.corpus.description import checked_digest
from embedcache.fsio import canonical_json, parsed_json
from embedcache.share.remote.ranges import Ranges, checked_ranges
from embedcache.share.remote.shared_file import MOST_INDEX_BYTES as MOST_INDEX_BYTES
from embedcache.share.remote.shared_file import IndexObject as IndexObject
from embedcache.share.remote.shared_file import KnownFiles
from embedcache.share.remote.shared_file import SharedFile as SharedFile

MANIFEST_VERSION = 1
MOST_MANIFEST_BYTES = 64 << 20
MOST_FILES = 250_000

# All of a manifest but its files: room for ten thousand teachers or corpora. Python takes up to 30 times as
# much memory to read it.
_MOST_FRAME_BYTES = 4 << 20
_FILES = b',"files":['
_LONGEST_TEXT = 2000
_WHEN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_FIELDS = {"version", "files", "teachers", "corpora", "card"}
_OPTIONAL = {"by", "when", "message", "news"}


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
        news: positions of those files that no manifest of the remote listed before; None where it does not
            say.
    """

    files: tuple[SharedFile, ...]
    teachers: tuple[TeacherLine, ...]
    corpora: tuple[CorpusLine, ...]
    card: str
    by: str = ""
    when: str = ""
    message: str = ""
    news: Ranges | None = None

    @property
    def new_files(self) -> tuple[SharedFile, ...]:
        """The files that no manifest listed before; all files where it does not say."""
        if self.news is None:
            return self.files
        return tuple(file for first, end in self.news for file in self.files[first:end])

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
        return self._frame() | {"files": [file.to_json() for file in self.files]}

    def _frame(self) -> dict[str, object]:
        """Return the content without the files."""
        given = {"by": self.by, "when": self.when, "message": self.message}
        return {
            "version": MANIFEST_VERSION,
            "files": [],
            "teachers": [
                {
                    "contract": teacher.contract,
                    "names": list(teacher.names),
                    "rows": teacher.rows,
                    "model": teacher.model,
                    "licence": teacher.licence,
                }
                for teacher in self.teachers
            ],
            "corpora": [
                {
                    "name": corpus.name,
                    "digest": corpus.digest,
                    "rows": corpus.rows,
                    "views": list(corpus.views),
                    "licence": corpus.licence,
                }
                for corpus in self.corpora
            ],
            "card": self.card,
            **{name: text for name, text in given.items() if text},
            **({} if self.news is None else {"news": [list(positions) for positions in self.news]}),
        }

    @classmethod
    def from_bytes(cls, data: bytes, name: str, known: KnownFiles | None = None) -> Manifest:
        """Read somebody's manifest, trusting nothing in it.

        Args:
            data: its bytes.
            name: the sha256 that it is called by.
            known: the files of manifests that were read before; those of this one are added.

        Raises:
            ValueError: if it is no manifest, or not the one that ``name`` says.
        """
        if hashlib.sha256(data).hexdigest() != name:
            raise ValueError("its bytes are not those that its name is the sha256 of")
        frame, spellings = _split(data)
        value = parsed_json(frame)
        if not isinstance(value, dict):
            raise ValueError("it is no JSON object")
        version = value.get("version")
        if type(version) is int and version > MANIFEST_VERSION:
            raise ValueError(f"it has version {version}: upgrade embedcache")
        if version != MANIFEST_VERSION or not _FIELDS <= value.keys() <= _FIELDS | _OPTIONAL:
            raise ValueError("its fields are not those of a manifest")
        if _list(value["files"]):
            raise ValueError("it is not spelled as manifests are")
        if not spellings:
            raise ValueError(f"it lists 0 files, expected 1 to {MOST_FILES:,}")
        files = (known or KnownFiles()).read(spellings)
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
            checked_ranges(value["news"], len(files)) if "news" in value else None,
        )
        if canonical_json(manifest._frame()) != frame:
            raise ValueError("it is not spelled as manifests are")
        # To take the sha256 again would spell all files again.
        vars(manifest)["id"] = name
        return manifest


def _split(data: bytes) -> tuple[bytes, list[bytes]]:
    """Return a manifest without its files, and its files, each without its braces.

    Only counts and looks for bytes: what JSON of many megabytes becomes in memory may be a hundred times as
    large. No path that a cache has holds a brace or a bracket.

    Raises:
        ValueError: if there is more of either than a manifest has.
    """
    begin = data.find(_FILES) + len(_FILES)
    end = data.find(b"]", begin)
    if begin < len(_FILES) or end < 0:
        begin = end = 0
    if len(data) - (end - begin) > _MOST_FRAME_BYTES:
        raise ValueError(
            f"it has {len(data) - (end - begin):,} bytes beside its files, expected {_MOST_FRAME_BYTES:,} at "
            "most"
        )
    if begin == end:
        return data, []
    if not (data.startswith(b"{", begin) and data.endswith(b"}", begin, end)):
        raise ValueError("it is not spelled as manifests are")
    if (count := data.count(b"},{", begin, end) + 1) > MOST_FILES:
        raise ValueError(f"it lists {count:,} files, expected 1 to {MOST_FILES:,}")
    return data[:begin] + data[end:], data[begin + 1 : end - 1].split(b"},{")


class Stock:
    """The union of manifests: every file that they list.

    A shard that manifests name different row indexes of has none here: one of them must be wrong.

    Args:
        manifests: what is looked at.
    """

    def __init__(self, manifests: Sequence[Manifest]) -> None:
        self.manifests = tuple(manifests)
        self._files: dict[str, dict[str, SharedFile]] = {}
        self._doubtful: set[str] = set()
        # Manifests that were read together share most of their file objects.
        for file in {id(file): file for manifest in self.manifests for file in manifest.files}.values():
            self._add(file)

    def _add(self, file: SharedFile) -> None:
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

    def lists(self, file: SharedFile) -> bool:
        """Return whether a manifest lists this version of a file, with or without a row index."""
        return file.sha256 in self._files.get(file.path, ())

    def __iter__(self) -> Iterator[SharedFile]:
        """Yield all files, every version of a path, sorted."""
        return iter(self._sorted)

    @cached_property
    def _sorted(self) -> Sequence[SharedFile]:
        return [file for path in sorted(self._files) for file in self.versions(path)]

    def versions(self, path: str) -> list[SharedFile]:
        """Return the versions of a file, by digest; several where pushes differ."""
        versions = self._files.get(path, {})
        return [versions[digest] for digest in sorted(versions)]

    def listing(self, file: SharedFile) -> list[Manifest]:
        """Return the manifests that list a version of a file, with whatever row index."""
        return list(self._listings.get((file.path, file.sha256), ()))

    def of_teacher(self, contract_id: str) -> list[SharedFile]:
        """Return all files of a teacher, sorted."""
        return list(self._of_teachers.get(contract_id, ()))

    def of_corpus(self, name: str) -> list[SharedFile]:
        """Return all files of the corpora of a name and of their views, sorted."""
        return list(self._of_corpora.get(name, ()))

    def shards(self, contract_id: str) -> list[SharedFile]:
        """Return all shards of a teacher."""
        return list(self._of_kinds.get((contract_id, Kind.SHARD), ()))

    def codebooks(self, contract_id: str) -> dict[str, SharedFile]:
        """Return all codebooks of a teacher, by their sha256."""
        return {file.sha256: file for file in self._of_kinds.get((contract_id, Kind.CODEBOOK), ())}

    @cached_property
    def _listings(self) -> Mapping[tuple[str, str], Sequence[Manifest]]:
        """The manifests that list a file, by its path and sha256; only those who ask pay for it."""
        listings: dict[tuple[str, str], list[Manifest]] = {}
        for manifest in self.manifests:
            for file in manifest.files:
                listings.setdefault((file.path, file.sha256), []).append(manifest)
        return listings

    @cached_property
    def _of_teachers(self) -> Mapping[str, Sequence[SharedFile]]:
        return _grouped(self._sorted, lambda file: file.entry.teacher)

    @cached_property
    def _of_corpora(self) -> Mapping[str, Sequence[SharedFile]]:
        return _grouped(self._sorted, lambda file: file.entry.corpus)

    @cached_property
    def _of_kinds(self) -> Mapping[tuple[str, Kind], Sequence[SharedFile]]:
        return _grouped(self._sorted, lambda file: (file.entry.teacher, file.entry.kind))

    @cached_property
    def teacher_names(self) -> Mapping[str, frozenset[str]]:
        """The contract ids that have files, and the names of each."""
        return {
            contract: frozenset(file.entry.stem for file in files if "/names/" in file.path)
            for contract, files in self._of_teachers.items()
            if contract
        }

    @cached_property
    def corpus_names(self) -> tuple[str, ...]:
        """The names of corpora that have files, sorted."""
        return tuple(sorted(self._of_corpora.keys() - {""}))


_GroupT = TypeVar("_GroupT")


def _grouped(
    files: Iterable[SharedFile], group_of: Callable[[SharedFile], _GroupT]
) -> dict[_GroupT, list[SharedFile]]:
    groups: dict[_GroupT, list[SharedFile]] = {}
    for file in files:
        groups.setdefault(group_of(file), []).append(file)
    return groups


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
