"""Checks of the small files of a cache, each of which is read as a whole and vouches for itself."""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from pathlib import Path

from embedcache.cache import CACHE_MARKER, CACHE_VERSION, read_contract, read_origin
from embedcache.check.bench import Bench
from embedcache.check.findings import (
    DERIVED_WAY_OUT,
    PROJECTION_WAY_OUT,
    REPAIR,
    UPGRADE,
    Finding,
    Findings,
    Kind,
    damage,
    note,
    printable,
    reason,
)
from embedcache.check.inventory import Entry
from embedcache.codecs import pq
from embedcache.contract import CONTRACT_VERSION
from embedcache.corpus.corpus import CORPUS_VERSION, read_info
from embedcache.errors import CacheFormatError, CorruptCacheError
from embedcache.fsio import (
    canonical_json,
    parsed_json,
    read_regular,
    read_sealed_json,
    spelled_json,
)
from embedcache.projection import PROJECTION, is_derived, projection_digest
from embedcache.store.digests import CHECKED, read_noted
from embedcache.teacher.token_table import TokenTable

_HALF_COPIED = (".partial", ".part", ".tmp", ".crdownload", ".filepart")
_HOUR = 3600.0


def check_marker(bench: Bench, entry: Entry) -> Findings:
    """Check ``cache.json``."""
    try:
        value = read_sealed_json(bench.folder / entry.path)
    except (OSError, ValueError) as error:
        yield damage(entry.path, entry.kind, f"it cannot be read: {reason(error)}")
        return
    if value == CACHE_MARKER:
        return
    if value.get("format") == CACHE_MARKER["format"] and is_newer(value.get("version"), CACHE_VERSION):
        yield damage(
            entry.path,
            entry.kind,
            f"it tells of format version {str(value['version'])[:20]}, this embedcache reads version "
            f"{CACHE_VERSION}",
            UPGRADE,
        )
    else:
        yield damage(entry.path, entry.kind, "its content is not what embedcache writes")


def is_newer(version: object, known: int) -> bool:
    """Return whether what stands in the place of a version is one after ``known``."""
    return type(version) is int and version > known


def check_description(bench: Bench, entry: Entry) -> Findings:
    """Check ``corpus.json``."""
    try:
        read_info((bench.folder / entry.path).parent)
    except (CorruptCacheError, CacheFormatError) as error:
        path = bench.folder / entry.path
        yield _refused(path, entry, error, is_newer=_is_newer_description(path))


def _is_newer_description(path: Path) -> bool:
    try:
        return is_newer(read_sealed_json(path).get("version"), CORPUS_VERSION)
    except (OSError, ValueError):
        return False


def check_contract(bench: Bench, entry: Entry) -> Findings:
    """Check ``contract.json``: it has to be spelled as it is written, and to be that of its folder."""
    try:
        contract = read_contract(bench.folder / entry.path)
    except CorruptCacheError as error:
        path = bench.folder / entry.path
        yield _refused(path, entry, error, is_newer=_is_newer_contract(path))
        return
    if is_derived(contract) and not (bench.folder / entry.folder / PROJECTION).exists():
        yield damage(f"{entry.folder}/{PROJECTION}", Kind.PROJECTION, "it is gone", PROJECTION_WAY_OUT)


def _is_newer_contract(path: Path) -> bool:
    try:
        data = read_regular(path)
        value = parsed_json(data)
        if not isinstance(value, dict) or spelled_json(value) != data:
            return False
        is_its_own = hashlib.sha256(canonical_json(value)).hexdigest() == path.parent.name
    # JSON can hold what UTF-8 cannot.
    except (OSError, ValueError):
        return False
    return is_its_own and is_newer(value.get("version"), CONTRACT_VERSION)


def check_name(bench: Bench, entry: Entry) -> Findings:
    """Check the file of a teacher's name."""
    try:
        read_origin(bench.folder / entry.path)
    except CorruptCacheError as error:
        yield _refused(bench.folder / entry.path, entry, error)


def check_sealed(bench: Bench, entry: Entry) -> Findings:
    """Check a JSON file by its own digest."""
    try:
        read_sealed_json(bench.folder / entry.path)
    except (OSError, ValueError) as error:
        way_out = {} if entry.kind is Kind.SEAL else {"way_out": DERIVED_WAY_OUT}
        yield damage(entry.path, entry.kind, f"it is damaged: {reason(error)}", **way_out)


def check_derived_note(bench: Bench, entry: Entry) -> Findings:
    """Check notes by the digests that they carry, whatever the form of their file."""
    if entry.path.rpartition("/")[2] != CHECKED:
        yield from check_sealed(bench, entry)
        return
    try:
        read_noted(bench.folder / entry.path)
    except (OSError, ValueError) as error:
        yield damage(entry.path, entry.kind, f"it is damaged: {reason(error)}", DERIVED_WAY_OUT)


def check_codebook(bench: Bench, entry: Entry) -> Findings:
    """Check a codebook of ``pq`` by the digest in its name."""
    try:
        pq.load(bench.folder / entry.folder, entry.stem)
    except CorruptCacheError as error:
        yield _refused(bench.folder / entry.path, entry, error)


def check_token_table(bench: Bench, entry: Entry) -> Findings:
    """Check a teacher's token embeddings by the digest in their header."""
    path = bench.folder / entry.path
    try:
        TokenTable.read(path, entry.teacher)
    except (CorruptCacheError, CacheFormatError) as error:
        yield _refused(path, entry, error, is_newer=isinstance(error, CacheFormatError))
    bench.meter.add(size=entry.size)


def check_projection(bench: Bench, entry: Entry) -> Findings:
    """Check the map of a derived teacher by the digest in its contract."""
    with suppress(CorruptCacheError):
        contract = read_contract(bench.folder / entry.folder / "contract.json")
        digest = bench.meter.digest(bench.folder / entry.path)
        if digest != projection_digest(contract):
            found = f"its bytes have the digest {digest[:12]}…, and its contract names another"
            yield damage(entry.path, entry.kind, found, PROJECTION_WAY_OUT)


def check_special(bench: Bench, entry: Entry) -> Findings:
    """Report a link, a pipe, a device or a folder that cannot be read, which make a cache unusable."""
    path = bench.folder / entry.path
    if path.is_symlink():
        found = f"it is a symbolic link to {printable(str(path.readlink()))}"
    else:
        found = "it is a folder that cannot be read" if path.is_dir() else "it is no regular file"
    yield damage(
        entry.path,
        entry.kind,
        f"{found}; a cache holds its files itself",
        "delete it, or put the file itself in its place",
    )


def check_leftover(bench: Bench, entry: Entry) -> Findings:
    """Report a file that was being written when its process ended, or that is being written now."""
    age = time.time() - (bench.folder / entry.path).lstat().st_mtime
    yield note(
        entry.path,
        entry.kind,
        f"{entry.size:,} bytes, last written {age / _HOUR:.1f} hours ago",
        "nothing, where a build or a pull is running; else 'embedcache gc' takes it away once it is a day "
        "old, and 'embedcache gc --older 0' at once",
    )


def check_quarantined(bench: Bench, entry: Entry) -> Findings:
    """Report a file that was moved aside."""
    yield note(entry.path, entry.kind, f"{entry.size:,} bytes moved aside", "delete it when you are sure")


def check_foreign(bench: Bench, entry: Entry) -> Findings:
    """Report a file that embedcache does not read."""
    name = entry.path.rpartition("/")[2]
    in_teacher = entry.path.startswith("teachers/") or entry.path.startswith("corpora/")
    if name.endswith(_HALF_COPIED) or (in_teacher and name.endswith((".arrow", ".mdb", ".safetensors"))):
        found = "it looks like a copy that was not finished or was given another name; it is not read"
        way_out = (
            "copy it again under its own name and delete this one, or move it away with repair --quarantine"
        )
    else:
        found = "embedcache does not know what it is and does not read it"
        way_out = "move it away, or 'embedcache repair --quarantine' does"
    yield note(entry.path, entry.kind, found, way_out)


def check_lock(bench: Bench, entry: Entry) -> Findings:
    """Report nothing: no byte of a lock means anything once the processes that share it have ended."""
    yield from ()


def _refused(path: Path, entry: Entry, error: Exception, *, is_newer: bool = False) -> Finding:
    return damage(entry.path, entry.kind, told(error, path), UPGRADE if is_newer else REPAIR)


def told(error: Exception, path: Path) -> str:
    """Return what an error says of the file at ``path``, without its name and without its advice."""
    text = reason(error).rpartition(f"{path} ")[2]
    return f"{text.partition('): ')[0]})" if "): " in text else text
