"""Crew of a build, by its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from embedcache.building.encode import BuildOutput
from embedcache.cache import Cache
from embedcache.codecs import pq
from embedcache.errors import InputError
from embedcache.parallel.crew import Crew
from embedcache.parallel.processes import Processes, parse_devices
from embedcache.parallel.worker import OutputSetup, WorkerSetup
from embedcache.teacher.lazy import LazyTeacher
from embedcache.teacher.options import EncodeOptions


def open_crew(
    cache: Cache, teacher: LazyTeacher, encode: EncodeOptions, outputs: Sequence[BuildOutput]
) -> Crew:
    """Return the crew of a build with ``devices``; its workers start when there are rows to encode.

    Raises:
        InputError: if the teacher or the store cannot be shared by processes.
    """
    own = replace(encode, part=None, devices=None)
    setup = WorkerSetup(teacher.portable(), own, cache.folder.resolve(), tuple(map(_output_setup, outputs)))
    devices = parse_devices(encode.devices or "")
    own_threads = threads_of(encode, devices)
    own_options = [replace(own, device=device, threads=own_threads) for device in devices]
    return Crew(Processes([replace(setup, encode=one) for one in own_options]), encode.shard_rows)


def threads_of(encode: EncodeOptions, devices: Sequence[str]) -> int:
    """Return the CPU threads of each of several processes of one machine."""
    from embedcache.teacher.encode import available_cores

    return max(1, (encode.threads or available_cores()) // len(devices))


def _output_setup(output: BuildOutput) -> OutputSetup:
    store = output.store
    if store.kind != "arrow":
        raise InputError(
            f"the cache keeps {output.result.teacher!r} in one {store.kind} file, which one process writes: "
            "leave devices out, or take store arrow"
        )
    shards = store.shards if store.codec_name == pq.NAME else ()
    codebook_in = next((shard.name for shard in shards if shard.header.codebook), None)
    return OutputSetup(output.result.teacher, store.contract, store.codec_name, codebook_in)
