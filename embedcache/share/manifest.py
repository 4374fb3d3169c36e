"""Manifests: what one push added to a remote, and its card.

Format: docs/remote-format.md. A manifest comes from a stranger, so every field is checked before it is used.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from embedcache.cache import Cache
from embedcache.codecs import CODEC_NAMES
from embedcache.errors import InputError, RemoteError
from embedcache.fsio import canonical_json, make_directory, parsed_json
from embedcache.inventory import Entry, Kind, entry_at
from embedcache.keys import KEY_BYTES
from embedcache.share.remote import Remote

MANIFESTS = "manifests"
MOST_MANIFEST_BYTES = 64 << 20
_LARGEST_OBJECT = 1 << 42
LEAVE_OUT = "Pull without it (skip_manifests), or take it back with 'embedcache remote drop'"
"""Remedies for a push that is refused."""

SHARED = (
    Kind.PROJECTION,
    Kind.CONTRACT,
    Kind.NAME,
    Kind.CODEBOOK,
    Kind.TABLE,
    Kind.SHARD,
    Kind.PART,
    Kind.CORPUS,
    Kind.VIEW_PART,
    Kind.VIEW,
    Kind.RECIPE,
)
"""Kinds of files that are shared, each after the kinds it refers to."""
NAMED_BY_DIGEST = {Kind.PART, Kind.VIEW_PART, Kind.SHARD, Kind.CODEBOOK}
_NAME = re.compile(r"([0-9]{8}T[0-9]{6}Z)-([0-9a-f]{64})\.json")


Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Count = Annotated[int, Field(ge=0, le=_LARGEST_OBJECT)]
_Text = Annotated[str, Field(max_length=4000)]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SharedFile(_Document):
    """A file of a cache, stored on a remote as an object named by its digest.

    Attributes:
        path: its place in a cache.
        sha256: digest of its bytes.
        bytes: its size.
        rows: rows of a shard, else 0.
        codec: codec of a shard, else empty.
        keys: digest of a shard's key list, an object of 16 bytes a row; else empty.
    """

    path: Annotated[str, Field(max_length=1000)]
    sha256: Digest
    bytes: _Count
    rows: _Count = 0
    codec: Annotated[str, Field(pattern=f"^({'|'.join(CODEC_NAMES)})?$")] = ""
    keys: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""

    @cached_property
    def entry(self) -> Entry:
        """Kind, corpus, view and teacher, by the path."""
        return entry_at(self.path, self.bytes)

    @property
    def key_bytes(self) -> int:
        """Size of the key list."""
        return self.rows * KEY_BYTES

    @model_validator(mode="after")
    def _check_place(self) -> SharedFile:
        kind, of_shards = self.entry.kind, (self.keys, self.rows, self.codec)
        if kind not in SHARED:
            raise ValueError("not the path of a file that is shared")
        if kind in NAMED_BY_DIGEST and self.entry.stem != self.sha256:
            raise ValueError("the digest in the path is another one")
        if not all(of_shards) if kind is Kind.SHARD else any(of_shards):
            raise ValueError("wrong fields for this kind of file")
        return self


class SharedTeacher(_Document):
    """A teacher on a card: ``rows`` counts the rows of the shards that the push added."""

    contract: Digest
    names: Annotated[list[_Text], Field(min_length=1)]
    rows: _Count
    model: _Text = ""
    licence: _Text = ""


class SharedCorpus(_Document):
    """A corpus on a card."""

    name: _Text
    digest: Digest
    rows: _Count
    views: list[_Text] = []


class Manifest(_Document):
    """Files that one push added, and its card.

    Attributes:
        files: sorted by path; objects that they name are on the remote.
        teachers, corpora: the card, for people.
        by, message, licence: as the pusher gave them.
        when: time of the push, UTC, ``2026-01-31T12:00:00Z``.
    """

    version: Literal[2] = 2
    files: list[SharedFile]
    teachers: list[SharedTeacher] = []
    corpora: list[SharedCorpus] = []
    by: _Text = ""
    message: _Text = ""
    licence: _Text = ""
    when: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]

    def to_bytes(self) -> bytes:
        """Return the canonical JSON."""
        return canonical_json(self.model_dump(exclude_defaults=True) | {"version": 2, "when": self.when})

    def objects(self) -> dict[str, int]:
        """Return the objects that it lists, key lists included: sha256 -> bytes."""
        found = {file.sha256: file.bytes for file in self.files}
        return found | {file.keys: file.key_bytes for file in self.files if file.keys}


def manifest_name(data: bytes, when: str) -> str:
    """Return the file name of a manifest: its time and its digest."""
    return f"{re.sub('[-:]', '', when)}-{hashlib.sha256(data).hexdigest()}.json"


def is_manifest_name(name: str) -> bool:
    """Return whether a file name is that of a manifest."""
    return _NAME.fullmatch(name) is not None


def digest_in(name: str) -> str:
    """Return the digest in the file name of a manifest."""
    return name[-69:-5]


def parse_manifest(name: str, data: bytes) -> Manifest:
    """Return the manifest in ``data``, trusting nothing in it.

    Raises:
        ValueError: if it has another digest than its name, or lists anything but files of a cache.
    """
    if hashlib.sha256(data).hexdigest() != digest_in(name):
        raise ValueError("its content has another digest than its name")
    try:
        return Manifest.model_validate(parsed_json(data))
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None


def first_problem(error: ValidationError) -> str:
    """Return the place of the first wrong field, and its fault."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))[:80]}: {first['msg'][:200]}"


class ManifestSet:
    """Manifests of a remote, and what they list together.

    Args:
        manifests: name -> manifest, oldest first.

    Attributes:
        objects: sha256 -> bytes of every listed object.
    """

    def __init__(self, manifests: dict[str, Manifest]) -> None:
        self.manifests = manifests
        self.objects: dict[str, int] = {}
        self._files: dict[tuple[str, str], SharedFile] = {}
        self._listed_by: dict[str, list[str]] = defaultdict(list)
        for name, manifest in manifests.items():
            self._files.update({(file.path, file.sha256): file for file in manifest.files})
            self.objects |= manifest.objects()
            for sha256 in manifest.objects():
                self._listed_by[sha256].append(name)

    def files(self) -> list[SharedFile]:
        """Return all files, those of newer manifests first; several files may have one path."""
        return list(reversed(self._files.values()))

    def shards(self, contract_id: str) -> list[SharedFile]:
        """Return the shards of a teacher, sorted by name."""
        start = f"teachers/{contract_id}/shards/"
        return sorted((one for one in self.files() if one.path.startswith(start)), key=lambda one: one.sha256)

    def codebooks(self, shards: Iterable[SharedFile]) -> list[SharedFile]:
        """Return the codebooks of the teachers of ``shards``."""
        teachers = {file.entry.teacher for file in shards}
        codebooks = (file for file in self.files() if file.entry.kind is Kind.CODEBOOK)
        return [file for file in codebooks if file.entry.teacher in teachers]

    def teacher_names(self) -> dict[str, list[str]]:
        """Return the names of the teachers that have a contract there, sorted, by contract id."""
        entries = [file.entry for file in self.files()]
        whole = {entry.teacher for entry in entries if entry.kind is Kind.CONTRACT}
        names: dict[str, set[str]] = {}
        for entry in entries:
            if entry.kind is Kind.NAME and entry.teacher in whole:
                names.setdefault(entry.teacher, set()).add(entry.stem)
        return {contract_id: sorted(called) for contract_id, called in names.items()}

    def corpora(self) -> dict[str, dict[str, dict[str, list[SharedFile]]]]:
        """Return files by corpus, by digest of its version, and by view; empty for the corpus itself.

        The newest version comes first. The files of a view are of one manifest, the newest that has it: a
        manifest lists all files of a corpus.
        """
        found: dict[str, dict[str, dict[str, list[SharedFile]]]] = {}
        for manifest in reversed(self.manifests.values()):
            for card in manifest.corpora:
                views: dict[str, list[SharedFile]] = {}
                for file in manifest.files:
                    if file.entry.corpus == card.name:
                        views.setdefault(file.entry.view, []).append(file)
                versions = found.setdefault(card.name, {})
                versions[card.digest] = views | versions.get(card.digest, {})
        return found

    def pushed_by(self, digests: Iterable[str]) -> str:
        """Name the manifests that list some objects, and who pushed them: ``3f2a91c0aa12 (by Ann)``."""
        names = dict.fromkeys(name for sha256 in digests for name in self._listed_by.get(sha256, ()))
        shown = [f"{digest_in(name)[:12]} (by {self.manifests[name].by or 'unknown'})" for name in names]
        return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")


def names_beginning(names: Iterable[str], digits: Sequence[str], where: str) -> list[str]:
    """Return the manifests whose digests begin with each of ``digits``.

    Raises:
        InputError: if some digits name none, or several.
    """
    every, found = list(names), []
    for begin in digits:
        matches = [name for name in every if len(begin) >= 6 and digest_in(name).startswith(begin)]
        if len(matches) != 1:
            raise InputError(
                f"{where}: {len(matches)} manifests begin with {begin[:64]!r}, expected one. Give six digits "
                "or more, as 'embedcache remote ls' lists them."
            )
        found += matches
    return found


def manifest_names(remote: Remote) -> list[str]:
    """Return the file names of the manifests of a remote, oldest first."""
    return sorted(filter(is_manifest_name, remote.names_in(MANIFESTS)))


def read_manifests(
    remote: Remote, cache: Cache | None = None, names: Iterable[str] | None = None
) -> ManifestSet:
    """Return manifests of a remote.

    Args:
        remote: the remote.
        cache: keeps copies of them in ``derived/remotes``.
        names: their names; default: all.

    Raises:
        RemoteError: if one cannot be read, is damaged or too large, or lists anything but files of a cache.
    """
    copies = None if cache is None else cache.derived_folder / "remotes" / remote.id
    every = manifest_names(remote) if names is None else list(names)
    read = remote.in_threads(partial(_read, remote, copies), every)
    # One may have been taken back since it was listed.
    return ManifestSet({name: one for name, one in zip(every, read, strict=True) if one is not None})


def _read(remote: Remote, copies: Path | None, name: str) -> Manifest | None:
    data: bytes | None = None
    if copies is not None:
        with suppress(OSError):
            data = (copies / name).read_bytes()
    if data is None or hashlib.sha256(data).hexdigest() != digest_in(name):
        data = remote.read(f"{MANIFESTS}/{name}", MOST_MANIFEST_BYTES)
        if data is None:
            return None
        if copies is not None:
            with suppress(OSError):
                (make_directory(copies) / name).write_bytes(data)
    try:
        return parse_manifest(name, data)
    except ValueError as error:
        raise RemoteError(
            f"{remote.url}: manifest {digest_in(name)[:12]} is refused ({error}). {LEAVE_OUT}."
        ) from error
