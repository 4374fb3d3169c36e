"""Checks of shards, wherever their bytes lie."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedcache.check.bench import Bench
from embedcache.check.findings import REPAIR, UPGRADE, Findings, Kind, damage, note, reason
from embedcache.check.inventory import Entry
from embedcache.check.verify.documents import is_newer, told
from embedcache.codecs import Codec, Stored, Vectors, get_codec, pq
from embedcache.errors import CacheFormatError, CorruptCacheError, StorageError
from embedcache.fsio import parsed_json, read_sealed_json
from embedcache.store.containers import FolderShards
from embedcache.store.containers.base import is_shard_name
from embedcache.store.containers.lmdb import SEAL
from embedcache.store.mapped_lmdb import check_structure, open_shared
from embedcache.store.shard import SHARD_VERSION, Shard, open_shard

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_ARROW_BEGIN, _ARROW_END = b"ARROW1\0\0", b"ARROW1"
_HEADER = b"embedcache"


class _UnreadPQ(Codec):
    """Stands for ``pq`` where rows are looked at whose codebook may be damaged."""

    name = pq.NAME
    dtype = pq.PQCodec.dtype
    decoded = pq.PQCodec.decoded

    def width(self, dimension: int) -> int:
        return pq.stored_width(dimension)

    def encode(self, vectors: Vectors) -> Stored:
        raise TypeError("no codebook was read")

    def decode(self, stored: Stored) -> NDArray[np.floating]:
        raise TypeError("no codebook was read")


def open_without_codebook(data: pa.Buffer, name: str, where: str) -> Shard:
    """Open a shard whose vectors need not be decoded: the codebook of ``pq`` is not read.

    Raises:
        CorruptCacheError, CacheFormatError: as :func:`embedcache.store.shard.open_shard`.
    """
    return open_shard(
        data, name, where, lambda codec, _: _UnreadPQ() if codec == pq.NAME else get_codec(codec)
    )


def detached(shard: Shard) -> Shard:
    """Return what is needed of a shard to make others: nothing of it holds on to a file."""
    return replace(
        shard,
        keys=shard.keys.copy(),
        stored=Stored(np.empty((0, 0), dtype=shard.codec.dtype)),
        tokens=np.empty(0, dtype=np.int32),
        truncated=np.empty(0, dtype=np.bool_),
    )


def check_shard_file(bench: Bench, entry: Entry) -> Findings:
    """Check a shard in a file of its own."""
    path = bench.folder / entry.path
    digest = bench.meter.digest(path)
    if digest != entry.stem:
        yield damage(
            entry.path, entry.kind, f"{entry.size:,} bytes with the digest {digest[:12]}…{_cut_off(path)}"
        )
        return
    data = FolderShards(path.parent).open(entry.stem)
    yield from check_shard_content(bench, data, entry.stem, entry.path, entry.teacher)


def check_shard_content(bench: Bench, data: pa.Buffer, name: str, path: str, teacher: str) -> Findings:
    """Check what is in a shard whose digest is right.

    Args:
        bench: where the shard is put if it is sound.
        data: its bytes.
        name: its name.
        path: where it lies, for the findings.
        teacher: id of the contract it has to carry.
    """
    try:
        shard = open_without_codebook(data, name, path)
    except (CorruptCacheError, CacheFormatError) as error:
        yield damage(path, Kind.SHARD, told(error, Path(path)), UPGRADE if is_newer_shard(data) else REPAIR)
        return
    bench.meter.add(rows=len(shard))
    if shard.header.contract.id == teacher:
        bench.shards[teacher].append(shard)
    else:
        yield damage(
            path,
            Kind.SHARD,
            f"it belongs to the teacher {shard.header.contract.id[:12]}…, not to the folder it lies in",
            "'embedcache repair' moves it to its own teacher's folder, or to quarantine where there is none",
        )


def is_newer_shard(data: pa.Buffer) -> bool:
    """Return whether bytes whose digest is right are a shard of a newer version, however it is laid out."""
    import pyarrow as pa

    try:
        first = pa.ipc.MessageReader.open_stream(pa.BufferReader(data[len(_ARROW_BEGIN) :]))
        schema = pa.ipc.read_schema(first.read_next_message())
        header = parsed_json((schema.metadata or {})[_HEADER])
    except (pa.ArrowException, LookupError, StopIteration, ValueError, OSError, OverflowError, MemoryError):
        return False
    return isinstance(header, dict) and is_newer(header.get("version"), SHARD_VERSION)


def check_lmdb_store(bench: Bench, entry: Entry) -> Findings:
    """Check an LMDB file and every shard in it; liblmdb sees it only after its structure was found sound."""
    path = bench.folder / entry.path
    seal = _sealed_digest(path)
    if not entry.size and not path.with_name(SEAL).exists():
        yield note(entry.path, entry.kind, "it is empty: a build ended as it made it", "run that build again")
        return
    digest = bench.meter.digest(path)
    # A writer takes the seal away before it changes anything.
    if seal is not None and digest != seal and seal == _sealed_digest(path):
        yield damage(entry.path, entry.kind, f"its bytes have the digest {digest[:12]}…, not the one sealed")
        return
    try:
        check_structure(path)
        mapped = open_shared(path, writable=False)
        keys = mapped.list_keys()
    except CorruptCacheError as error:
        yield damage(entry.path, entry.kind, told(error, path))
        return
    except StorageError as error:
        yield note(entry.path, entry.kind, reason(error), "check it again when no build is running")
        return
    for key in keys:
        name = key.decode("ascii", "replace")
        yield from _check_value(bench, mapped.get(key), name, entry)
    if seal is None:
        yield note(
            entry.path,
            entry.kind,
            "it is not sealed: whoever wrote to it last did not end; its structure and shards were looked at",
            "run that command again, or 'embedcache repair', which seals it",
        )


def _check_value(bench: Bench, data: pa.Buffer | None, name: str, entry: Entry) -> Findings:
    path = f"{entry.path}#{name}"
    if data is None or not is_shard_name(name):
        yield damage(path, Kind.SHARD, "it is no shard: shards are named by 64 hexadecimal digits")
        return
    digest = hashlib.sha256(data).hexdigest()
    if digest != name:
        yield damage(path, Kind.SHARD, f"{data.size:,} bytes with the digest {digest[:12]}…")
        return
    yield from check_shard_content(bench, data, name, path, entry.teacher)


def _sealed_digest(path: Path) -> str | None:
    try:
        return str(read_sealed_json(path.with_name(SEAL))["digest"])
    except (OSError, ValueError, KeyError):
        return None


def _cut_off(path: Path) -> str:
    with path.open("rb") as handle:
        handle.seek(max(0, path.stat().st_size - len(_ARROW_END)))
        whole = handle.read() == _ARROW_END
    return "" if whole else "; it is cut off, as by a copy that did not finish"
