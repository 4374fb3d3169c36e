"""Pool of workers for a build, by its options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from uuid import uuid4

from embedcache.building.encode import BuildOutput
from embedcache.cache import Cache
from embedcache.codecs import pq
from embedcache.errors import InputError
from embedcache.fsio import write_bytes
from embedcache.parallel.pool import PUSHED_SECONDS, WINDOW_SECONDS, WorkerPool
from embedcache.parallel.process_engine import ProcessEngine
from embedcache.parallel.ray_engine import RayEngine
from embedcache.parallel.worker import OutputSetup, WorkerSetup
from embedcache.teacher.lazy import LazyTeacher
from embedcache.teacher.options import EncodeOptions, parse_devices


@contextmanager
def open_pool(
    cache: Cache,
    teacher: LazyTeacher,
    encode: EncodeOptions,
    outputs: Sequence[BuildOutput],
    remote: str | None = None,
) -> Iterator[WorkerPool]:
    """Yield the pool of a build with ``devices`` or ``engine``; its workers end with the block.

    Args:
        cache: the cache.
        teacher: the teacher.
        encode: options of the build.
        outputs: its outputs.
        remote: URL of the remote that workers push to where they do not see the cache.

    Raises:
        InputError: if the teacher or the store cannot be shared by processes.
        StorageError: if the cache cannot be written.
        RemoteError: if the remote cannot be reached.
    """
    own = replace(encode, part=None, devices=None, engine=None, address=None)
    folder = cache.folder.resolve()
    setup = WorkerSetup(teacher.portable(), own, folder, tuple(map(_output_setup, outputs)))
    if encode.devices is not None:
        from embedcache.teacher.encode import available_cores

        devices = parse_devices(encode.devices)
        threads = max(1, (encode.threads or available_cores()) // len(devices))
        setups = [replace(setup, encode=replace(own, device=one, threads=threads)) for one in devices]
        with closing(WorkerPool(lambda: ProcessEngine(setups), encode.shard_rows)) as pool:
            yield pool
        return
    if remote is not None:
        from embedcache.share.remote import Remote

        Remote(remote, to_write=True).create()  # before workers find it empty, all at once
    marker = folder / "derived" / f"seen-{uuid4().hex}"
    write_bytes(marker, b"")
    setup = replace(setup, marker=marker, remote=remote)
    seconds = WINDOW_SECONDS if remote is None else PUSHED_SECONDS
    try:
        with closing(
            WorkerPool(lambda: RayEngine(setup, encode.address), encode.shard_rows, seconds)
        ) as pool:
            yield pool
    finally:
        marker.unlink(missing_ok=True)


def _output_setup(output: BuildOutput) -> OutputSetup:
    store = output.store
    if store.kind != "arrow":
        raise InputError(
            f"the cache keeps {output.result.teacher!r} in one {store.kind} file, which one process writes: "
            "leave devices and engine out, or take store arrow"
        )
    shards = store.shards if store.codec_name == pq.NAME else ()
    codebook_in = next((shard.name for shard in shards if shard.header.codebook), None)
    return OutputSetup(output.result.teacher, store.contract, store.codec_name, codebook_in)
