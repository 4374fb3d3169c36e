"""Checks of single files, in one table: kind, place of the expected digest, how it is read, what mends it."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedcache.arrow_file import read_batch
from embedcache.cache import CACHE_MARKER, CACHE_VERSION, read_contract, read_origin
from embedcache.codecs import Codec, Stored, get_codec, pq
from embedcache.corpus.description import read_info, read_record
from embedcache.corpus.part import key_view
from embedcache.errors import CacheFormatError, CorruptCacheError, EmbedCacheError, StorageError
from embedcache.fsio import parsed_json, read_sealed_json
from embedcache.inventory import Entry, Kind, entry_at
from embedcache.keys import KEY_BYTES, KeyArray
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.projection import PROJECTION, is_derived, projection_digest
from embedcache.store import FolderShards, Shard
from embedcache.store.containers.lmdb import SEAL
from embedcache.store.mapped_lmdb import check_structure, open_shared
from embedcache.store.shard import ShardHeader, open_shard
from embedcache.teacher.token_table import TokenTable
from embedcache.verify.findings import Finding, first_line, printable

if TYPE_CHECKING:
    import pyarrow as pa

UPGRADE = "upgrade embedcache: a newer version wrote it"
_BLOCK_BYTES = 1 << 20


@dataclass
class FileChecks:
    """Checks of the files of a cache, one at a time, from any thread.

    Attributes:
        folder: the cache's folder.
        progress: receives the bytes that are read.
        shards: contract id -> name -> bytes of the sound shards found so far.
        undecodable: the same of shards whose codebook is missing or damaged.
    """

    folder: Path
    progress: Progress = NO_PROGRESS
    shards: defaultdict[str, dict[str, pa.Buffer]] = field(default_factory=lambda: defaultdict(dict))
    undecodable: defaultdict[str, dict[str, pa.Buffer]] = field(default_factory=lambda: defaultdict(dict))

    def path(self, entry: Entry) -> Path:
        """Return the place of a file."""
        return self.folder / entry.path

    def check(self, entry: Entry) -> list[Finding]:
        """Check a file on its own."""
        rule, path = RULES[entry.kind], self.path(entry)
        try:
            if rule.expected == _NAME and (digest := self.digest(path)) != entry.stem:
                return [damage(entry.path, f"{entry.size:,} bytes with the digest {digest[:12]}")]
            return list(rule.read(self, entry) or ())
        except FileNotFoundError:
            # Replaced or garbage collected since the files were listed.
            return []
        except StorageError as error:
            return [note(entry.path, first_line(error), "verify again later")]
        except (EmbedCacheError, ValueError, LookupError, TypeError, AttributeError, OSError) as error:
            return [_refusal(entry.path, error, path, entry.kind)]
        finally:
            if rule.expected not in _READ_IN_BLOCKS:
                self.progress.advance(entry.size)

    def digest(self, path: Path) -> str:
        """Return the sha256 of a file."""
        digest = hashlib.sha256()
        with path.open("rb") as handle:
            while block := handle.read(_BLOCK_BYTES):
                digest.update(block)
                self.progress.advance(len(block))
        return digest.hexdigest()

    def open_shard(self, data: pa.Buffer, name: str, path: str, contract_id: str) -> None:
        """Count a shard whose digest is right as sound.

        Raises:
            CorruptCacheError: if it is none, or belongs to another teacher.
            CacheFormatError: if a newer version of embedcache wrote it.
        """
        folder = self.folder / "teachers" / contract_id / "codebooks"

        def find_codec(codec: str, codebook: str | None) -> Codec:
            return get_codec(codec) if codebook is None else pq.load(folder, codebook)

        peeked = peek_shard(data, name, path)
        if peeked is not None and peeked.header.contract.id != contract_id:
            raise ValueError(f"it belongs to the teacher {peeked.header.contract.id[:12]}, not to its folder")
        if peeked is not None and peeked.header.codebook is not None:
            try:
                pq.load(folder, peeked.header.codebook)
            except CorruptCacheError:
                self.undecodable[contract_id][name] = data
                return
        open_shard(data, name, path, find_codec)
        self.shards[contract_id][name] = data


def peek_shard(data: pa.Buffer, name: str, where: str) -> Shard | None:
    """Return header and keys of a shard that may be damaged, without vectors; None if they cannot be read."""
    import pyarrow as pa

    try:
        batch = read_batch(data)
        header = ShardHeader.from_json(parsed_json((batch.schema.metadata or {})[b"embedcache"]))
        column = batch.column("key")
        column.validate(full=True)
        if column.type != pa.binary(KEY_BYTES) or len(column) != header.rows or column.null_count:
            return None
        keys = key_view(column).copy()
    except CacheFormatError:
        return None
    except (pa.ArrowException, LookupError, TypeError, ValueError, OSError, OverflowError, MemoryError):
        return None
    return bare_shard(name, where, header, keys)


def peek_file(path: Path) -> tuple[Shard | None, str]:
    """Return header and keys of the shard in a file, as :func:`peek_shard`, and the sha256 of its bytes."""
    try:
        data = FolderShards(path.parent).open(path.stem)
    except CorruptCacheError:  # it is empty
        return None, ""
    return peek_shard(data, path.stem, str(path)), hashlib.sha256(data).hexdigest()


def bare_shard(name: str, where: str, header: ShardHeader, keys: KeyArray) -> Shard:
    """Return a shard of which only header and keys are known."""
    rest = Stored(np.empty((0, 0), np.float16)), np.empty(0, np.int32), np.empty(0, np.bool_)
    return Shard(name, where, 0, header, get_codec("float16"), keys, *rest)


# Readers raise where a file is not what it should be, and yield what else there is to say.


def _marker(checks: FileChecks, entry: Entry) -> None:
    value = read_sealed_json(checks.path(entry))
    version = value.get("version")
    if value.get("format") == CACHE_MARKER["format"] and type(version) is int and version > CACHE_VERSION:
        raise CacheFormatError(f"it has format version {str(version)[:20]}, expected {CACHE_VERSION}")
    if value != CACHE_MARKER:
        raise ValueError("its content is not what embedcache writes")


def _description(checks: FileChecks, entry: Entry) -> None:
    read_info(checks.path(entry).parent)


def _recipe(checks: FileChecks, entry: Entry) -> None:
    read_record(checks.path(entry).parent)


def _contract(checks: FileChecks, entry: Entry) -> Iterator[Finding]:
    path = checks.path(entry)
    if is_derived(read_contract(path)) and not path.with_name(PROJECTION).exists():
        yield damage(f"{entry.folder}/{PROJECTION}", "it is missing")


def _origin(checks: FileChecks, entry: Entry) -> None:
    read_origin(checks.path(entry))


def _sealed(checks: FileChecks, entry: Entry) -> None:
    read_sealed_json(checks.path(entry))


def _codebook(checks: FileChecks, entry: Entry) -> None:
    pq.load(checks.path(entry).parent, entry.stem)


def _token_table(checks: FileChecks, entry: Entry) -> None:
    TokenTable.read(checks.path(entry), entry.teacher)


def _projection(checks: FileChecks, entry: Entry) -> None:
    path = checks.path(entry)
    digest = checks.digest(path)
    with suppress(CorruptCacheError):
        expected = projection_digest(read_contract(path.with_name("contract.json")))
        if digest != expected:
            raise ValueError(f"{entry.size:,} bytes with the digest {digest[:12]}")


def _shard(checks: FileChecks, entry: Entry) -> None:
    data = FolderShards(checks.path(entry).parent).open(entry.stem)
    checks.open_shard(data, entry.stem, entry.path, entry.teacher)


def _lmdb(checks: FileChecks, entry: Entry) -> Iterator[Finding]:
    path = checks.path(entry)
    seal = sealed_digest(path)
    if not entry.size and not path.with_name(SEAL).exists():
        # Made by a build that was killed at once.
        return
    digest = checks.digest(path)
    # A writer takes the seal away before it changes anything.
    if seal is not None and digest != seal and seal == sealed_digest(path):
        raise ValueError(f"its bytes have the digest {digest[:12]}, not the one sealed")
    # liblmdb sees the file only once its structure was found sound.
    check_structure(path)
    mapped = open_shared(path, writable=False)
    for key in mapped.list_keys():
        name, data = key.decode("ascii", "replace"), mapped.get(key)
        place = f"{entry.path}#{printable(name)}"
        if data is None or hashlib.sha256(data).hexdigest() != name:
            yield damage(place, "its bytes do not have the digest that is its name")
            continue
        try:
            checks.open_shard(data, name, place, entry.teacher)
        except (EmbedCacheError, ValueError) as error:
            yield _refusal(place, error, path, Kind.SHARD)
    if seal is None:
        yield note(entry.path, "it has no seal: its last writer did not end", "the next build seals it")


def sealed_digest(path: Path) -> str | None:
    """Return the digest that the seal of an LMDB file names, None without a sound one."""
    try:
        return str(read_sealed_json(path.with_name(SEAL))["digest"])
    except (OSError, ValueError, KeyError):
        return None


def _special(checks: FileChecks, entry: Entry) -> None:
    path = checks.path(entry)
    what = f"it is a symbolic link to {path.readlink()}" if path.is_symlink() else "it is no regular file"
    raise ValueError(f"{what}; a cache holds its files itself")


def _unread(checks: FileChecks, entry: Entry) -> Iterator[Finding]:
    yield replace(damage(entry.path, f"{entry.size:,} bytes", entry.kind), is_damage=False)


def _nothing(checks: FileChecks, entry: Entry) -> None:
    """Read nothing: rows are checked together with their description."""


@dataclass(frozen=True)
class Rule:
    """How files of a kind are checked, and what mends them.

    Attributes:
        expected: where the digest that a file should have comes from.
        read: reads a file whose digest is right.
        fix: what to do about a damaged one.
    """

    expected: str
    read: Callable[[FileChecks, Entry], Iterable[Finding] | None]
    fix: str


_NAME, _INSIDE, _NONE = "its name", "inside it", "none"
_READ_IN_BLOCKS = (_NAME, SEAL, "contract.json")
_WRITE = "'embedcache repair' writes it again"
_ENCODE = "'embedcache repair' encodes its rows again"
_READ = "'embedcache build SRC --name {corpus} --overwrite' reads it again; vectors are kept"
_REMAKE = "'embedcache repair' makes it again, or says how"
_BUILD_VIEW = "'embedcache build SRC --name {corpus} --view {view}=... --overwrite' makes it again"

RULES: Mapping[Kind, Rule] = {
    Kind.MARKER: Rule(_INSIDE, _marker, _WRITE),
    Kind.CORPUS: Rule(_INSIDE, _description, _READ),
    Kind.PART: Rule(_NAME, _nothing, _READ),
    Kind.VIEW: Rule(_INSIDE, _description, _REMAKE),
    Kind.VIEW_PART: Rule(_NAME, _nothing, _REMAKE),
    Kind.RECIPE: Rule(_INSIDE, _recipe, _BUILD_VIEW),
    Kind.CONTRACT: Rule("its folder", _contract, _WRITE),
    Kind.NAME: Rule(_INSIDE, _origin, _WRITE),
    Kind.SHARD: Rule(_NAME, _shard, _ENCODE),
    Kind.STORE: Rule(SEAL, _lmdb, _ENCODE),
    Kind.SEAL: Rule(_INSIDE, _sealed, _WRITE),
    Kind.CODEBOOK: Rule(_NAME, _codebook, "'embedcache repair' learns it again"),
    Kind.TABLE: Rule(_INSIDE, _token_table, "'embedcache repair' reads it from the model again"),
    Kind.PROJECTION: Rule("contract.json", _projection, "copy it back, or run 'distill kb project' again"),
    Kind.SPECIAL: Rule(_NONE, _special, "delete it, or put the file itself in its place"),
    Kind.UNKNOWN: Rule(_NONE, _unread, "embedcache does not read it: move it away, unless it is yours"),
    Kind.LEFTOVER: Rule(_NONE, _unread, "'embedcache gc' deletes it once it is a day old"),
}
"""Kind of file -> where its digest comes from, how it is read, what mends it. Other kinds are not checked."""


def damage(path: str, what: str, kind: Kind | None = None) -> Finding:
    """Return a finding of damage to the file at ``path``, or to a shard in it."""
    entry = entry_at(path.partition("#")[0])
    kind = kind or (Kind.SHARD if "#" in path else entry.kind)
    fix = RULES[kind].fix.format(corpus=entry.corpus, view=entry.view)
    return Finding(printable(path), kind.value, what, fix)


def note(path: str, what: str, fix: str) -> Finding:
    """Return a finding that is no damage."""
    return Finding(printable(path), entry_at(path).kind.value, what, fix, is_damage=False)


def _refusal(path: str, error: Exception, file: Path, kind: Kind) -> Finding:
    """Return the finding for an error about ``file``, without the file's name and the error's advice."""
    text = first_line(error).rpartition(f"{file} ")[2]
    found = damage(path, f"{text.partition('): ')[0]})" if "): " in text else text, kind)
    return replace(found, fix=UPGRADE) if isinstance(error, CacheFormatError) else found
