"""Checks of single files, in one table: kind of file, check and remedy."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from embedcache.arrow_file import read_batch
from embedcache.cache_documents import CACHE_MARKER, CACHE_VERSION, read_contract, read_origin
from embedcache.codecs import Codec, Stored, get_codec, pq
from embedcache.corpus.description import read_info, read_record
from embedcache.corpus.part import key_view
from embedcache.errors import (
    CacheFormatError,
    CorruptCacheError,
    EmbedCacheError,
    StorageError,
    UnreadableError,
)
from embedcache.fsio import parsed_json, read_sealed_json, regular_size, sha256_file
from embedcache.inventory import Entry, Kind, entry_at
from embedcache.keys import KEY_BYTES
from embedcache.os_errors import reading
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.projection import projection_digest
from embedcache.store import FolderShards, Shard, ShardContainer
from embedcache.store.lmdb_shards import SEAL, check_structure, may_write, open_lmdb
from embedcache.store.shard import ShardHeader, open_shard
from embedcache.teacher.token_table import TokenTable

if TYPE_CHECKING:
    import pyarrow as pa

UPGRADE = "upgrade embedcache: a newer version wrote it"

Reopen: TypeAlias = Callable[[], "pa.Buffer"]
"""Opens a shard."""


@dataclass(frozen=True, order=True)
class Finding:
    """Something about a file of a cache.

    Attributes:
        path: the file, relative to the cache; a shard inside an LMDB file is ``FILE#NAME``.
        kind: value of its ``embedcache.inventory.Kind``.
        what: the fault.
        fix: remedy.
        state: ``damaged``; ``not read`` if the file may well be sound; ``note`` if nothing is lost and
            everything can be used.
    """

    path: str
    kind: str
    what: str
    fix: str
    state: Literal["damaged", "not read", "note"] = "damaged"

    @property
    def is_damage(self) -> bool:
        """True if bytes were read and are wrong, or a file is missing."""
        return self.state == "damaged"

    @property
    def is_unread(self) -> bool:
        """True if the file could not be read."""
        return self.state == "not read"

    @property
    def is_newer(self) -> bool:
        """True if a newer version of embedcache wrote the file: it is whole, and not understood."""
        return self.fix == UPGRADE


@dataclass
class FileChecks:
    """Checks of the files of a cache, one at a time, from any thread.

    Attributes:
        folder: the cache's folder.
        progress: receives the bytes that are read.
        repairs: True if vectors are written afterwards: LMDB opens a file once in a process.
        shards: contract id -> the sound shards found so far.
        lost: contract id -> name -> damaged shards, as far as ``peek_shard`` reads them.
    """

    folder: Path
    progress: Progress = NO_PROGRESS
    repairs: bool = False
    shards: defaultdict[str, SoundShards] = field(default_factory=lambda: defaultdict(SoundShards))
    lost: defaultdict[str, dict[str, Shard]] = field(default_factory=lambda: defaultdict(dict))

    def check(self, entry: Entry) -> list[Finding]:
        """Check a file on its own."""
        path = self.folder / entry.path
        read, fix = RULES.get(entry.kind, RULES[Kind.UNKNOWN])
        try:
            if entry.unread:
                return [unread(entry.path, entry.unread, entry.kind)]
            if entry.kind is Kind.UNKNOWN:
                return [note(entry.path, f"{entry.size:,} bytes", fix)]
            with reading(path):
                if entry.kind is Kind.STORE:
                    return self._check_lmdb(path, entry)
                if entry.kind is Kind.SHARD:
                    digest, reopen = sha256_file(path), partial(FolderShards(path.parent).open, entry.stem)
                    return self._check_shard(reopen, digest, entry.stem, path, entry.path, entry.teacher)
                read(path, entry)
        except FileNotFoundError:
            # Replaced or garbage collected since the files were listed.
            return []
        except UnreadableError as error:
            return [unread(entry.path, first_line(error).removeprefix(f"cannot read {path}: "), entry.kind)]
        except StorageError as error:
            return [note(entry.path, first_line(error), "verify again later")]
        except _ERRORS as error:
            return [refusal(entry.path, error, path, entry.kind)]
        finally:
            self.progress.advance(entry.size)
        return []

    def _check_shard(
        self, reopen: Reopen, digest: str, name: str, file: Path, path: str, contract_id: str
    ) -> list[Finding]:
        """Check a shard in ``file``, and keep its facts for the checks between files."""
        data = reopen()
        folder = self.folder / "teachers" / contract_id / "codebooks"

        def find_codec(codec: str, codebook: str | None) -> Codec:
            return get_codec(codec) if codebook is None else pq.load(folder, codebook)

        try:
            if digest != name:
                raise ValueError(f"{data.size:,} bytes with the digest {digest[:12]}")
            shard = open_shard(data, name, path, find_codec)
            if (other := shard.header.contract.id) != contract_id:
                raise ValueError(f"it belongs to the teacher {other[:12]}, not to its folder")
        except UnreadableError:
            # Of its codebook.
            raise
        except (EmbedCacheError, ValueError) as error:
            peeked = peek_shard(data, name, path)
            if peeked is not None and peeked.header.contract.id == contract_id:
                self.lost[contract_id][name] = peeked
            return [refusal(path, error, file)]
        self.shards[contract_id].found[name] = reopen
        self.lost[contract_id].pop(name, None)
        return []

    def _check_lmdb(self, path: Path, entry: Entry) -> list[Finding]:
        seal = _sealed_digest(path)
        if not entry.size and not path.with_name(SEAL).exists():
            # Made by a build that was killed at once.
            return []
        # A writer removes the seal before it changes anything.
        is_changed = seal is not None and sha256_file(path) != seal and seal == _sealed_digest(path)
        # liblmdb sees the file only once its structure was found sound.
        check_structure(path)
        mapped, found = open_lmdb(path, writable=self.repairs and may_write(path)), list[Finding]()
        for key in mapped.list_keys():
            name, data = key.decode("ascii", "replace"), mapped.get(key)
            if data is not None:
                digest, reopen = hashlib.sha256(data).hexdigest(), partial(_same, data)
                found += self._check_shard(reopen, digest, name, path, f"{entry.path}#{name}", entry.teacher)
        if is_changed and not found:
            raise ValueError("its digest is not the one in its seal")
        return found


class SoundShards(ShardContainer):
    """Shards of a teacher that were found sound, wherever they lie; none is kept open.

    Attributes:
        found: name -> opens the shard.
    """

    kind = "memory"

    def __init__(self) -> None:
        self.found: dict[str, Reopen] = {}

    def names(self) -> list[str]:
        """Return the names of the shards, sorted."""
        return sorted(self.found)

    def open(self, name: str) -> pa.Buffer:
        """Return the bytes of a shard."""
        return self.found[name]()

    def add(self, name: str, data: pa.Buffer) -> None:
        """Add a shard that stays in memory."""
        self.found[name] = partial(_same, data)

    def remove(self, name: str) -> None:
        """Forget a shard."""
        self.found.pop(name, None)

    def where(self, name: str) -> str:
        """Return the name of a shard, for messages."""
        return name


def _same(data: pa.Buffer) -> pa.Buffer:
    return data


def _sealed_digest(path: Path) -> str | None:
    """Return the digest that the seal of an LMDB file names, None without a sound one."""
    with suppress(OSError, ValueError, KeyError):
        return str(read_sealed_json(path.with_name(SEAL))["digest"])
    return None


def peek_shard(data: pa.Buffer, name: str, where: str) -> Shard | None:
    """Return a damaged shard with its header and keys alone; None if they cannot be read."""
    import pyarrow as pa

    try:
        batch = read_batch(data)
        header = ShardHeader.from_json(parsed_json((batch.schema.metadata or {})[b"embedcache"]))
        column = batch.column("key")
        column.validate(full=True)
        if column.type != pa.binary(KEY_BYTES) or len(column) != header.rows or column.null_count:
            return None
        rest = Stored(np.empty((0, 0), np.float16)), np.empty(0, np.int32), np.empty(0, np.bool_)
        return Shard(name, where, 0, header, get_codec("float16"), key_view(column).copy(), *rest)
    except (*_ERRORS, pa.ArrowException, OverflowError, MemoryError):
        return None


# Readers raise if a file is damaged.


def _read_marker(path: Path, entry: Entry) -> None:
    value = read_sealed_json(path)
    version = value.get("version")
    if type(version) is int and version > CACHE_VERSION:
        raise CacheFormatError(f"it has format version {str(version)[:20]}, expected {CACHE_VERSION}")
    if value != CACHE_MARKER:
        raise ValueError("its content is not what embedcache writes")


def _read_named(path: Path, entry: Entry) -> None:
    _compare(path, entry.stem)


def _read_projection(path: Path, entry: Entry) -> None:
    with suppress(CorruptCacheError):
        _compare(path, projection_digest(read_contract(path.with_name("contract.json"))))


def _compare(path: Path, expected: str | None) -> None:
    if (digest := sha256_file(path)) != expected:
        raise ValueError(f"its bytes have the digest {digest[:12]}")


_ERRORS = (EmbedCacheError, ValueError, LookupError, TypeError, AttributeError, OSError)
_WRITE = "'embedcache repair' writes it again"
_ENCODE = "'embedcache repair' encodes its rows again"
_READ = "'embedcache build SRC --name {corpus} --overwrite' reads it again; vectors are kept"
_VIEW = "'embedcache build SRC --name {corpus} --view {view} --overwrite' makes it again; vectors are kept"
MISSING = "it is missing"
NO_NAME = "names/"
"""Place of the names of a teacher that has none."""

RULES: Mapping[Kind, tuple[Callable[[Path, Entry], object], str]] = {
    Kind.MARKER: (_read_marker, _WRITE),
    Kind.CORPUS: (lambda path, _: read_info(path.parent), _READ),
    Kind.PART: (_read_named, _READ),
    Kind.VIEW: (lambda path, _: read_info(path.parent), _VIEW),
    Kind.VIEW_PART: (_read_named, _VIEW),
    Kind.RECIPE: (lambda path, _: read_record(path.parent), _VIEW),
    Kind.CONTRACT: (lambda path, _: read_contract(path), _WRITE),
    Kind.NAME: (lambda path, _: read_origin(path), _WRITE),
    Kind.SHARD: (_read_named, _ENCODE),
    Kind.STORE: (_read_named, _ENCODE),
    Kind.SEAL: (lambda path, _: read_sealed_json(path), _WRITE),
    Kind.CODEBOOK: (lambda path, entry: pq.load(path.parent, entry.stem), _ENCODE),
    Kind.TABLE: (
        lambda path, entry: TokenTable.read(path, entry.teacher),
        "delete it; 'embedcache build SRC --token-embeddings' reads it from the model again",
    ),
    Kind.PROJECTION: (_read_projection, "copy it back, or run 'distill kb project' again"),
    Kind.SPECIAL: (lambda path, _: regular_size(path), "delete it, or put the file itself in its place"),
    Kind.UNKNOWN: (_read_named, "embedcache does not read it: move it away, unless it is yours"),
}
"""Kind of file -> how it is read, what mends it. Shards have their own checks."""


def printable(text: str) -> str:
    """Return a text from a foreign file as it can be shown: control codes and stray bytes escaped."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def first_line(error: BaseException) -> str:
    """Return an error in one line."""
    return printable(next(iter(str(error).splitlines()), "")) or type(error).__name__


def damage(path: str, what: str, kind: Kind | None = None) -> Finding:
    """Return a finding of damage to the file at ``path``, or to a shard in it."""
    entry = entry_at(path.partition("#")[0])
    kind = kind or (Kind.SHARD if "#" in path else entry.kind)
    fix = RULES[kind][1].format(corpus=entry.corpus, view=entry.view)
    return Finding(printable(path), kind.value, what, fix)


def unread(path: str, why: str, kind: Kind) -> Finding:
    """Return a finding of a file, or of a folder, that could not be read."""
    fix = "nothing is known of it: make it readable, and verify again"
    return Finding(printable(path), kind.value, why, fix, "not read")


def note(path: str, what: str, fix: str) -> Finding:
    """Return a finding that is not damage."""
    return Finding(printable(path), entry_at(path).kind.value, what, fix, "note")


def refusal(path: str, error: Exception, file: Path, kind: Kind | None = None) -> Finding:
    """Return the finding for an error about ``file``, without the file's name."""
    found = damage(path, first_line(error).rpartition(f"{file} ")[2], kind)
    return replace(found, fix=UPGRADE) if isinstance(error, CacheFormatError) else found
