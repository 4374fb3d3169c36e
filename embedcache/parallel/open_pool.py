"""Pool of workers for a build, by its options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from uuid import uuid4

from embedcache.cache import Cache
from embedcache.codecs import pq
from embedcache.errors import InputError
from embedcache.fsio import TEMPORARY_PREFIX, write_bytes
from embedcache.parallel.pool import PUSHED_SECONDS, WINDOW_SECONDS, WorkerPool
from embedcache.parallel.process_engine import ProcessEngine
from embedcache.parallel.ray_engine import RayEngine
from embedcache.parallel.worker import WorkerSetup
from embedcache.probes import Probes
from embedcache.store import ShardStore
from embedcache.teacher.lazy import LazyTeacher
from embedcache.teacher.options import EncodeOptions, parse_devices


@contextmanager
def open_pool(
    cache: Cache,
    teacher: LazyTeacher,
    encode: EncodeOptions,
    store: ShardStore,
    probes: Callable[[], Probes] | None = None,
    remote: str | None = None,
) -> Iterator[WorkerPool]:
    """Yield the pool of a build with ``devices`` or ``engine``; its workers end with the block.

    Args:
        cache: the cache.
        teacher: the teacher.
        encode: options of the build.
        store: the store of the teacher's vectors.
        probes: draws stored rows, which each worker encodes again before it stores any.
        remote: URL of the remote that workers push to where they do not see the cache.

    Raises:
        InputError: if the teacher or the store cannot be shared by processes.
        StorageError: if the cache cannot be written.
        RemoteError: if the remote cannot be reached.
    """
    if store.kind != "arrow":
        raise InputError(
            f"the cache keeps {teacher.name!r} in one {store.kind} file, which one process writes: "
            "leave devices and engine out, or take store arrow"
        )
    own = replace(encode, part=None, devices=None, engine=None, address=None)
    folder = cache.folder.resolve()
    setup = WorkerSetup(
        teacher=teacher.portable(),
        encode=own,
        folder=folder,
        name=teacher.name,
        contract=store.contract,
        codec=store.codec_name,
        codebook_in=_codebook_in(store),
    )

    def drawn(setup: WorkerSetup) -> WorkerSetup:
        # Workers start after rows of stopped workers are stored.
        return setup if probes is None else replace(setup, probes=probes())

    if encode.devices is not None:
        from embedcache.teacher.encode import available_cores

        devices = parse_devices(encode.devices)
        threads = max(1, (encode.threads or available_cores()) // len(devices))
        setups = [replace(setup, encode=replace(own, device=one, threads=threads)) for one in devices]
        with closing(
            WorkerPool(lambda: ProcessEngine([drawn(one) for one in setups]), encode.shard_rows)
        ) as pool:
            yield pool
        return
    if remote is not None:
        from embedcache.share.remote import Remote

        Remote(remote, to_write=True).create()  # before workers find it empty, all at once
    marker = folder / "derived" / f"{TEMPORARY_PREFIX}seen-{uuid4().hex}"
    write_bytes(marker, b"")
    setup = replace(setup, marker=marker, remote=remote)
    seconds = WINDOW_SECONDS if remote is None else PUSHED_SECONDS
    try:
        with closing(
            WorkerPool(lambda: RayEngine(drawn(setup), encode.address), encode.shard_rows, seconds)
        ) as pool:
            yield pool
    finally:
        marker.unlink(missing_ok=True)


def _codebook_in(store: ShardStore) -> str | None:
    """Return the name of a shard with the codebook of new rows, if there is one."""
    if store.codec_name != pq.NAME:
        return None
    return next((shard.name for shard in store.shards if shard.header.codebook), None)
