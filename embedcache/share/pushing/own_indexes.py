"""The row indexes of a cache's own shards, made for a push."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from embedcache.cache import Cache
from embedcache.check.findings import Kind
from embedcache.check.progress import Meter
from embedcache.share.pushing.selection import LocalFile, LocalObject
from embedcache.share.remote.manifest import IndexObject
from embedcache.share.rows.index_notes import IndexNotes
from embedcache.share.rows.shard_index import can_be_indexed, index_bytes
from embedcache.share.transfer import run_all

if TYPE_CHECKING:
    import pyarrow as pa


def with_indexes(
    cache: Cache, files: Sequence[LocalFile], meter: Meter, jobs: int, stop: threading.Event
) -> tuple[LocalFile, ...]:
    """Return ``files`` with the row index of every shard named, where it is not yet.

    Shards are read for it the first time; what comes out is noted in the derived files.

    Args:
        cache: the cache they are of.
        files: what is to be pushed.
        meter: counts the shards that are read.
        jobs: how many are read at once.
        stop: set where one fails.

    Raises:
        CorruptCacheError: if the bytes of a shard are not those of its digest.
    """
    notes = IndexNotes(cache)
    fresh = [local for local in files if _lacks_index(local) and notes.get(local.file.sha256) is None]
    made: dict[str, IndexObject] = {}
    opening = threading.Lock()

    def make(local: LocalFile) -> None:
        # Shards inside one LMDB file are read through one transaction.
        with opening:
            data = local.open()
        data = _indexed(local, local.object.read(data))
        made[local.file.sha256] = IndexObject(hashlib.sha256(data).hexdigest(), data.size)
        meter.add(files=1, size=local.file.bytes)

    if fresh:
        meter.begin("index", total_files=len(fresh), total_bytes=sum(local.file.bytes for local in fresh))
        try:
            run_all(make, fresh, jobs=jobs, stop=stop)
        finally:
            notes.add(made)

    def named(local: LocalFile) -> LocalFile:
        if not _lacks_index(local):
            return local
        return replace(local, file=replace(local.file, index=notes.get(local.file.sha256)))

    return tuple(map(named, files))


def index_objects(files: Sequence[LocalFile]) -> list[LocalObject]:
    """Return the row indexes that ``files`` name, as objects to send."""
    return [
        LocalObject(
            local.file.index.sha256,
            local.file.index.bytes,
            local.open,
            f"the row index of {local.where}",
            derive=partial(_indexed, local),
        )
        for local in files
        if local.file.index is not None
    ]


def _lacks_index(local: LocalFile) -> bool:
    file = local.file
    return file.entry.kind is Kind.SHARD and file.index is None and can_be_indexed(file.bytes, file.rows)


def _indexed(local: LocalFile, data: pa.Buffer) -> pa.Buffer:
    import pyarrow as pa

    return pa.py_buffer(index_bytes(data, local.file.sha256))
